"""Wildcards in prompts: choices such as `{a|b}`, and `__name__` for a line of `name.txt`.

Lines of a file that are empty or begin with `#` are skipped.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from comfyrelay.comfyui.graphs.dynamic_prompts import MAX_DEPTH, Choice, Template, parse_template
from comfyrelay.errors import InvalidInput
from comfyrelay.text import is_storable

MAX_FILE_BYTES = 1024**2


@dataclass(frozen=True, kw_only=True)
class Wildcards:
    """Reads templates. `folder` contains the files; it is `None` without files, as on a server."""

    folder: Path | None
    _read: dict[str, Choice] = field(default_factory=dict, repr=False)
    _templates: dict[str, Template] = field(default_factory=dict, repr=False)

    def template(self, text: str) -> Template:
        """Parse a prompt. Prompts of a batch repeat, so each is parsed once."""
        if text not in self._templates:
            self._templates[text] = self._parse(text, depth=0)
        return self._templates[text]

    def _parse(self, text: str, *, depth: int) -> Template:
        if depth > MAX_DEPTH:
            raise InvalidInput(f"Wildcards are nested more than {MAX_DEPTH} deep. Does a file name itself?")
        return parse_template(text, read_file=partial(self._file, depth=depth + 1))

    def _file(self, name: str, *, depth: int) -> Choice:
        if name not in self._read:
            lines = self._lines(name)
            self._read[name] = Choice([self._parse(line, depth=depth).parts for line in lines])
        return self._read[name]

    def _lines(self, name: str) -> list[str]:
        if self.folder is None:
            raise InvalidInput(f"__{name}__: Only a desk has files of wildcards. Write the options as {{a|b}}.")
        try:
            base = self.folder.resolve(strict=True)
            path = (base / f"{name}.txt").resolve(strict=True)
            # The name has no dots, but a link may lead elsewhere.
            if not path.is_relative_to(base):
                raise InvalidInput(f"__{name}__: {name}.txt is a link that leads out of the wildcards folder.")
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise InvalidInput(f"__{name}__: {name}.txt is larger than {MAX_FILE_BYTES:,} bytes.")
            text = content.decode("utf-8-sig")
        except (OSError, RuntimeError):
            # A link cycle is a RuntimeError.
            raise InvalidInput(
                f"__{name}__: There is no file {name}.txt in the folder 'wildcards' of the data folder."
            ) from None
        except UnicodeDecodeError:
            raise InvalidInput(f"__{name}__: {name}.txt is not text in UTF-8.") from None
        stripped = (line.strip() for line in text.splitlines())
        lines = [line for line in stripped if line and not line.startswith("#")]
        if not lines or not is_storable(text):
            raise InvalidInput(f"__{name}__: There is no usable line in {name}.txt.")
        return lines
