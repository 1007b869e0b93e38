"""The check that every weight lands, whatever loads it.

Subjects are loaded in every way that can go wrong, in the interpreter that has them (`probe/`).
"""

from vtool.loading.testing import check_load_weights

__all__ = ["check_load_weights"]
