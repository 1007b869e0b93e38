"""The settings of a file of verl's, and which of them its user has given."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vtool.config.foreign.theirs import ForeignFile
from vtool.config.foreign.verl_settings import SameSetting


class VerlFile(ForeignFile):
    """A file of verl's. One that Hydra has composed names every default, which nobody has said."""

    defaults: Mapping[str, Any]

    def says(self, name: str) -> bool:
        """Return whether a setting is of the user's, and not a default that Hydra wrote down."""
        return name in self.given and not (self._is_composed() and self.is_default(name))

    def is_default(self, name: str) -> bool:
        """Return whether a setting has the value that it has where nobody gives one."""
        value, default = self.given.get(name), self.defaults.get(name)
        refers = "${" in str(default) and self._is_composed()
        return value in (None, {}, []) or value == default or refers

    def of_its_engine(self, same: SameSetting) -> SameSetting:
        """Return a setting with the default that it has with the engine that is chosen."""
        return replace(same, default=self.defaults.get(same.theirs, same.default))

    def _is_composed(self) -> bool:
        return any(one.endswith("._target_") for one in self.given)
