"""Does every weight land, whatever loads it?

Subjects are loaded in hostile ways inside the interpreter that has them (`probe/`).
"""

from vtool.loading.testing import check_load_weights

__all__ = ["check_load_weights"]
