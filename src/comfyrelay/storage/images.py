"""Is this a readable image, and how large is it?"""

from typing import BinaryIO

from PIL import Image

from comfyrelay.storage.media_info import MediaInfo, Unreadable

# Only formats that are images and nothing else: Pillow would hand EPS to Ghostscript, for one.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")


def read_image(file: BinaryIO, *, max_pixels: int) -> MediaInfo:
    """Read the image; raises whatever Pillow raises, or `Unreadable`, when that cannot be done."""
    with Image.open(file, formats=FORMATS) as image:
        if image.width * image.height > max_pixels:
            raise Unreadable
        info = MediaInfo(kind="image", width=image.width, height=image.height, frames=getattr(image, "n_frames", 1))
        has_check_sums = image.format == "PNG"
        image.verify()
    if not has_check_sums:
        # of these formats only decoding tells whether all of it is there
        file.seek(0)
        with Image.open(file, formats=FORMATS) as image:
            # JPEG is decoded at an eighth of its size, which still reads every byte
            image.draft(None, (image.width // 8, image.height // 8))
            image.load()
    return info
