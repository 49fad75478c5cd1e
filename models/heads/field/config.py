"""Settings of the heads whose classes a field of the data set tells: `action` and `pixel`."""

from models.heads.config import AUXILIARY_HEADS, AuxiliaryHeadConfig
from runtime.registry import imported


class FieldHeadConfig(AuxiliaryHeadConfig):
    """A head whose classes are told by a field that the data set declares: the action at each cell
    of a maze, the colours of each cell; ours.

    When it helps: where labels leave out what the answer means, and the data set knows it, such as
    which way a path goes (docs/heads.md). A field that the labels imply teaches nothing new.
    """

    field: str
    """name of the field"""

    @property
    def reads_field(self) -> str:
        return self.field


for _name, _text in (("action", "what is done at each cell"), ("pixel", "colour of each cell")):
    _load = imported("models.heads.field.model", "FieldHead")
    AUXILIARY_HEADS.add(_name, FieldHeadConfig, _load, _text, place=2)
