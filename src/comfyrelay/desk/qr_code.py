"""Draw QR codes."""

import segno


def qr_rows(text: str) -> list[str]:
    """Return the rows of a QR code, without its margin: `1` is a dark square."""
    code = segno.make_qr(text, error="m")
    return ["".join("1" if module else "0" for module in row) for row in code.matrix]
