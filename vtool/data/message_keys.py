"""The keys of messages and of their parts: read, dropped, refused or remarked on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from vtool.data.keys import CARRIERS, KEYS_READ, carried, is_known, is_learnt, may_mask, slip
from vtool.data.missing import (
    WRITE_NULL,
    is_empty,
    is_nan,
    is_nothing,
    missing_in_words,
    no_name_in_words,
)
from vtool.data.row import Remark, shown_value
from vtool.diagnostics import Findings

WRITE_WEIGHT = (
    'write "weight": 0 in a turn of the assistant that is not to be learnt; every other one is'
)
NO_SOUND = "vtool trains on text, images and videos without their sound: remove the row"
_PART = 'write it as a part of content: {"type": "image", "image": "cat.png"}'
_VIDEO_PART = 'write it as a part of content: {"type": "video", "video": "clip.mp4"}'
_OF_CONTENT = {
    "image": _PART,
    "images": _PART,
    "video": _VIDEO_PART,
    "videos": _VIDEO_PART,
    "audio": NO_SOUND,
}
_PLAIN = frozenset({"role", "content"})
_FOR_TEMPLATES = frozenset({"tool_calls", "tool_call_id", "name", *CARRIERS})
_READ_TOO = ("weight", "reasoning_content", "reasoning", "thinking")
_OF_VIDEO = ("path", "url", "fps", "sample_fps")
_READ_OF_PARTS = {
    "text": {"type", "text"},
    "image": {"type", "image", "path", "url", "source", "detail"},
    "image_url": {"type", "image_url", "url", "detail"},
    "video": {"type", "video", *_OF_VIDEO},
    "video_url": {"type", "video_url", *_OF_VIDEO},
}
_UNLESS_SAID = ("loss", "loss_scale")
"""Keys of masks that need not be in each turn: in ms-swift, a turn without one is learnt."""
_NOT_LEARNT = "but only turns of the assistant are learnt"


class MessageKeys:
    """The keys of one row's messages, and what was seen of them."""

    def __init__(
        self,
        messages: Sequence[Any],
        ignore: Collection[str],
        malformed: Callable[..., Findings],
    ) -> None:
        self.messages, self.ignore, self.malformed = messages, ignore, malformed
        self.remarks: list[Remark] = []
        self.marks: dict[int, Mapping[str, bool]] = {}
        """Masks in other projects' keys, by the number of the assistant's turn: if it is learnt."""

    def read(self, message: Mapping[str, Any], number: int) -> Mapping[str, Any]:
        """Return a message without what says nothing, and with `weight` for what masks it.

        Raises:
            Findings: `malformed-messages`.
        """
        marks: dict[str, bool] = {}
        if not message.keys() <= _PLAIN:
            message = self._read(message, f"turn {number}", marks)
        if message["role"] == "assistant":
            self.marks[number] = marks
        return message

    def _read(
        self, message: Mapping[str, Any], where: str, marks: dict[str, bool]
    ) -> Mapping[str, Any]:
        made = {}
        answers = message["role"] == "assistant"
        for key, value in message.items():
            if key in _PLAIN:
                made[key] = value
            elif value is None or key in self.ignore:
                continue
            elif is_nan(value):
                self._check_nan(key, value, where)
            elif key == "weight":
                made[key] = self._weight(value, message["role"], where)
            elif key in _FOR_TEMPLATES or may_mask(key, value if answers else None):
                if is_nothing(value):
                    continue
                if key in _FOR_TEMPLATES:
                    made[key] = self._for_template(key, value, where)
                else:
                    marks[key] = self._mark(key, value, message["role"], where)
            else:
                made[key] = value
                if not is_empty(value):
                    self._check_other(key, value, where)
        return self._weighted(made, marks, where) if marks else made

    def _check_nan(self, key: str, value: Any, where: str) -> None:
        """Refuse NaN in a key that is read; in any other one it is absent."""
        if key in _FOR_TEMPLATES or key in _READ_TOO or may_mask(key):
            raise self.malformed(f'{where}: "{key}" is {missing_in_words(value)}: {WRITE_NULL}')

    def _for_template(self, key: str, value: Any, where: str) -> Any:
        if key != "name" and (words := missing_in_words(value)):
            raise self.malformed(f'{where}: "{key}" is {words}: {WRITE_NULL}')
        return value

    def _check_other(self, key: str, value: Any, where: str) -> None:
        meant, carries = slip(KEYS_READ["message"], key, value), carried(key)
        if carries and carries[1]:
            raise self.malformed(f'{where} has "{key}", which is not read', f"write {carries[0]}")
        if instead := f'write "{meant}"' if meant else _OF_CONTENT.get(key):
            raise self.malformed(f'{where} has "{key}", which is not read', instead)
        if not is_known(key, value):
            write = f" (for the model, write {carries[0]})" if carries else ""
            self.remarks.append(Remark("unread-key", f'"{key}" of a message{write}', key))

    def _weight(self, weight: Any, role: str, where: str) -> Any:
        if isinstance(weight, bool) or weight not in (0, 1):
            raise self.malformed(
                f'{where}: "weight" is 0 or 1; here it is {shown_value(weight)}',
                "0 leaves the turn out of the loss, 1 is the default",
            )
        if weight and role != "assistant":
            raise self.malformed(f'{where} has "weight": 1, {_NOT_LEARNT}', "leave the weight out")
        return weight

    def _mark(self, key: str, value: Any, role: str, where: str) -> bool:
        learnt = is_learnt(key, value)
        what = f'{where} has "{key}": {shown_value(value)}'
        if learnt is None:
            raise self.malformed(f"{what}, which is not read", WRITE_WEIGHT)
        if learnt and role != "assistant":
            raise self.malformed(f"{what}, {_NOT_LEARNT}", WRITE_WEIGHT)
        return learnt

    def _weighted(
        self, message: dict[str, Any], marks: Mapping[str, bool], where: str
    ) -> Mapping[str, Any]:
        said = dict(marks)
        if "weight" in message:
            said["weight"] = bool(message["weight"])
        if len(set(said.values())) > 1:
            names = " and ".join(f'"{key}"' for key in said)
            raise self.malformed(f"{where} has {names}, which differ", WRITE_WEIGHT)
        learnt = all(said.values()) or message["role"] != "assistant"
        return message if learnt else message | {"weight": 0}

    def check_marks(self) -> None:
        """Check that no turn leaves out what another one of the row says of being learnt.

        Raises:
            Findings: `malformed-messages`.
        """
        silent = next((number for number, marks in self.marks.items() if not marks), None)
        if silent is None:
            return
        for number, marks in self.marks.items():
            for key, learnt in marks.items():
                if learnt and key not in _UNLESS_SAID:
                    what = f'turn {number} has "{key}", which says that it is learnt, and turn'
                    raise self.malformed(f"{what} {silent} has none", WRITE_WEIGHT)

    def check_part(self, part: Mapping[str, Any], kind: str) -> None:
        """Remark on the keys of a part that nothing reads.

        Raises:
            Findings: `malformed-messages`, where a value that is read stands for a missing one.
        """
        if (read := _READ_OF_PARTS.get(kind)) is None:
            return  # it is refused
        for key, value in part.items():
            if key in read:
                of_text = kind == "text"
                in_words = no_name_in_words if key == kind else missing_in_words
                words = None if of_text and isinstance(value, str) else in_words(value)
                if words or (of_text and value is None):
                    what = f'"{key}" of a part of content is {words or "null"}'
                    raise self.malformed(what, "write it, or leave the part out")
            elif is_empty(value) or is_nan(value) or key in self.ignore:
                continue
            elif may_mask(key):
                what = f'a part of content has "{key}", which is not read'
                raise self.malformed(what, "a mask is of a whole turn: split the turn")
            elif not is_known(key, value):
                self.remarks.append(Remark("unread-key", f'"{key}" of a part of type {kind}'))

    def unread_tools(self) -> str:
        """Return other projects' keys of tools, with the keys to write; empty without one."""
        keys = dict.fromkeys(
            key
            for message in self.messages
            if isinstance(message, Mapping)
            for key, value in message.items()
            if key in CARRIERS and not is_empty(value)
        )
        return ", ".join(f'"{key}" (write {CARRIERS[key]})' for key in keys)
