"""Draws the photos.zip of docs/tutorial.md: small pictures of three things, and what archives of photos bring along.

`python draw_photos.py` writes photos.zip, the same pictures each time, and new_photos/ with pictures for `predict`.
"""

import io
import random
import zipfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

SIZE = 64
IMAGES_PER_CLASS = 24
CLASSES = ("leaf", "moon", "sun")


def draw(name: str, chance: random.Random) -> Image.Image:
    """One picture of this class, as different from the others as photos of one thing are."""
    night, shade = name == "moon", chance.randint(0, 40)
    sky = (shade, shade, 60 + shade) if night else (120 + shade, 170 + shade, 215 + shade)
    image = Image.new("RGB", (SIZE, SIZE), sky)
    pen = ImageDraw.Draw(image)
    x, y, radius = chance.randint(22, 42), chance.randint(22, 42), chance.randint(11, 18)
    box = (x - radius, y - radius, x + radius, y + radius)
    match name:
        case "leaf":
            pen.ellipse((x - radius, y - radius // 2, x + radius, y + radius // 2), fill=(40, 120 + shade, 40))
            pen.line((x - radius, y, x + radius + 6, y), fill=(20, 70, 20), width=2)
        case "moon":
            pen.ellipse(box, fill=(235, 235, 215))
            pen.ellipse((box[0] + radius // 2, box[1] - 3, box[2] + radius // 2, box[3] - 3), fill=sky)
        case "sun":
            pen.ellipse(box, fill=(250, 190 + shade, 40))
    return image.rotate(chance.randint(-30, 30), fillcolor=sky).filter(ImageFilter.GaussianBlur(0.7))


def as_jpeg(image: Image.Image) -> bytes:
    """The bytes of a JPEG file."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def main() -> None:
    """Write photos.zip and new_photos/ into the working folder."""
    chance = random.Random(1)
    with zipfile.ZipFile("photos.zip", "w") as archive:
        for name in CLASSES:
            for number in range(IMAGES_PER_CLASS):
                archive.writestr(f"photos/{name}/{number:02}.jpg", as_jpeg(draw(name, chance)))
        # An upload that broke off, and what macOS leaves in a folder.
        archive.writestr("photos/sun/broken.jpg", as_jpeg(draw("sun", chance))[:300])
        archive.writestr("photos/.DS_Store", b"\0\0\0\1Bud1")
    Path("new_photos").mkdir(exist_ok=True)
    for number, name in enumerate(CLASSES, 1):
        Path(f"new_photos/{number}.jpg").write_bytes(as_jpeg(draw(name, chance)))


if __name__ == "__main__":
    main()
