"""The audit of a checkpoint folder: headers, index, shards, values.

It imports no torch, opens no pickle, and writes nothing.
"""

from vtool.loading.checkpoint.audit import audit_folder

__all__ = ["audit_folder"]
