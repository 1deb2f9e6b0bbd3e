"""Write an object to a local folder."""

from pathlib import Path
from typing import BinaryIO

from comfyrelay.system.atomic import FileWriter
from comfyrelay.system.permissions import FILE_MODE, FOLDER_MODE


class ObjectWriter(FileWriter):
    """The stored object survives a power failure, and only our user can read it."""

    def __init__(self, target: Path) -> None:
        super().__init__(target, mode=FILE_MODE, is_durable=True)

    def open(self) -> BinaryIO:
        """Create the folder and the temporary file."""
        missed: OSError = FileNotFoundError(self.target.parent)
        for _ in range(100):
            try:
                self.target.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
                return super().open()
            # Deleting the last object of a folder deletes the folder, possibly right now: retry if it vanished between
            # `mkdir` and `open`.
            except (FileNotFoundError, FileExistsError) as error:
                missed = error
        raise missed
