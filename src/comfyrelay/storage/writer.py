"""One object on its way to a local folder, which is made for it."""

from pathlib import Path
from typing import BinaryIO

from comfyrelay.system.atomic import FileWriter
from comfyrelay.system.permissions import FILE_MODE, FOLDER_MODE


class ObjectWriter(FileWriter):
    """A stored object survives a power cut, and only our own user can read it."""

    def __init__(self, target: Path) -> None:
        super().__init__(target, mode=FILE_MODE, is_durable=True)

    def open(self) -> BinaryIO:
        """Make the folder and the part."""
        missed: OSError = FileNotFoundError(self.target.parent)
        for _ in range(100):
            try:
                self.target.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
                return super().open()
            # whoever removes the last object of a folder removes the folder too, maybe right now: then it was not
            # there for the file, nor, between two looks of `mkdir`, there as a folder
            except (FileNotFoundError, FileExistsError) as error:
                missed = error
        raise missed
