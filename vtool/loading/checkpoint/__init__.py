"""The audit of a checkpoint folder:

headers, index, shards, values. Imports no torch, opens no pickle, writes nothing.
"""

from vtool.loading.checkpoint.audit import audit_folder

__all__ = ["audit_folder"]
