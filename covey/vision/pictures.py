"""Pictures as people give them → upright RGB, the same pixels whatever the way: a path, bytes, {bytes, path}, an array, a PIL image,
a data URI. Nothing is fetched from an address unless `PictureLimits.urls` says so.

    limits      before anything is decoded: bytes, format, then width and height from the head of the file
    frame       the first one of an animation; of a PIL image the one that it stands at
    upright     as EXIF says; a note that cannot be read turns nothing, as in any viewer
    colours     transparent is white; palettes, CMYK and YCbCr by Pillow, which knows no colour profiles; 16 bits are scaled
    the rest    EXIF, GPS and comments are gone

Needs Pillow, which is imported when a picture is opened: pip install 'covey[vision]'.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import numpy as np

from covey.errors import ConfigError, DatasetError
from covey.text.foreign import excerpt
from covey.types import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Those that are decoded. Of the others that Pillow knows some start programs, and many are seldom tried with hostile files."""

TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""By EXIF's orientation: Pillow's name of what makes it upright."""

SIDEWAYS = ("TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
"""Those that exchange width and height."""

MOST_NOTES = 2**17
"""Bytes at the end of a PNG in which notes are looked for."""

ORIENTATION = 0x0112
"""EXIF's tag."""

SHOWN = 80
"""Characters of a wrong value that an error quotes."""
OF_FOLDER = 300
"""Letters of a folder, which is the user's own: cut off, it would not be told from its neighbours."""

LEFT_OUT = "leave the row out: bad_images='drop' does that in training"
"""The last way out."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://|//", re.IGNORECASE)
_DATA = re.compile(r"data:[^,]{0,200};base64$", re.IGNORECASE)
_whole_files = threading.Lock()
"""Held while a file is decoded: Pillow's switches for broken and large ones belong to the process."""


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Limits of what is opened."""

    root: Path | None = None
    """Folder that paths lie below, links followed; None: no path is opened."""
    megapixels: float = 89.0
    """Width times height at most, in millions."""
    megabytes: float = 100.0
    """Of an encoded picture at most, in millions of bytes."""
    ratio: float = 200.0
    """Longer over shorter side at most; processors refuse more, or make one line of it."""
    urls: bool = False
    """Whether pictures are fetched by address; see `covey.vision.fetching`."""


NO_LIMITS = PictureLimits(Path("/"), float("inf"), float("inf"), float("inf"))
"""What was opened before is opened again."""
IN_RECORD = replace(NO_LIMITS, megapixels=16_383**2 / 1e6)
"""As large as WebP holds: a record may be a stranger's."""


class ColumnPath(str):
    """The path of a file that an Image column of a dataset names: opened wherever it lies, as the library `datasets` would."""

    __slots__ = ()


class PictureError(DatasetError):
    """A picture of a dataset that cannot be used."""


class _Unusable(Exception):
    """A picture cannot be used: what is wrong, and a way out."""


def open_picture(
    given: object,
    row: int | None = None,
    column: str = "",
    index: int = 0,
    limits: PictureLimits | None = None,
) -> Image:
    """Return a picture upright and in RGB, decoded and independent of what was given; see `read_picture`."""
    return read_picture(given, row, column, index, limits)[1]


def read_picture(
    given: object,
    row: int | None = None,
    column: str = "",
    index: int = 0,
    limits: PictureLimits | None = None,
) -> tuple[Picture, Image]:
    """Return a picture as a reference, and its pixels: upright and in RGB, decoded and independent of what was given.

    Args:
        given: a PIL image; an array (height, width), with 1, 3 or 4 channels behind, uint8; encoded bytes; a mapping with `bytes` or
            `path`; a path; a `data:` URI; a `Picture` that was read before.
        row, column, index: where it stands in the dataset, for errors: the picture's place among those of the row.

    Raises:
        PictureError: it cannot be used; says where it stands and what to do.
        ConfigError: Pillow is missing.
    """
    with _faults_named(row, column, index):
        source, image, digest = _begun(given, limits or PictureLimits())
        plain = _in_colours(_upright(_loaded(image)))
        return Picture(source, digest or _digest_of(plain), plain.size), plain


def picture_of(
    given: object,
    row: int | None = None,
    column: str = "",
    index: int = 0,
    limits: PictureLimits | None = None,
) -> Picture:
    """Return a picture as a reference, from the head of its file: nothing is decoded, so damage behind the head is not found.

    Of an image or array all pixels are looked at, as they tell it from others. Arguments and errors: those of `read_picture`.
    """
    with _faults_named(row, column, index):
        source, image, digest = _begun(given, limits or PictureLimits())
        if digest and (size := _size_by_head(image)) is not None:
            return Picture(source, digest, size)
    return read_picture(given, row, column, index, limits)[0]


def reopened(picture: Picture) -> Image:
    """Return the pixels of a picture that was read before.

    Raises:
        PictureError: its file is not there any more, or holds another picture.
    """
    with _faults_named(None, "", 0):
        _, image, digest = _begun(picture, NO_LIMITS)
        if (
            not digest or digest == picture.digest
        ):  # another file was not looked at before: it may be of any size
            plain = _in_colours(_upright(_loaded(image)))
            if digest or _digest_of(plain) == picture.digest:
                return plain
    where = picture.source if isinstance(picture.source, str) else "A picture of the dataset"
    raise PictureError(
        f"{where} has changed since its prompt was read. Give the picture back its pixels, or begin the run anew."
    )


@contextmanager
def _faults_named(row: int | None, column: str, index: int) -> Iterator[None]:
    """Say where a picture stands that cannot be used inside."""
    try:
        yield
    except _Unusable as error:
        where = "A picture" if row is None else f"Row {row}, column {column!r}, picture {index}"
        raise PictureError(f"{where}: {error}") from error.__cause__


def _begun(given: object, limits: PictureLimits) -> tuple[Any, Image, str]:
    """Return where a picture comes from, an image whose size is allowed and whose pixels may not be decoded yet, and the digest of
    its encoded bytes; empty where there are none."""
    try:
        import PIL.Image
    except ImportError as error:
        raise ConfigError("Pictures need the package pillow: pip install 'covey[vision]'.") from error
    given = given.source if isinstance(given, Picture) else given
    source, digest = given, ""
    if isinstance(given, PIL.Image.Image):
        image = given
    elif isinstance(given, np.ndarray):
        image = _of_array(given, limits)
    else:
        source, data = _encoded(given, limits)
        image, digest = _of_file(data), hashlib.sha256(data).hexdigest()
    _check_size(image.size, limits)
    return source, image, digest


def _size_by_head(image: Image) -> tuple[int, int] | None:
    """Return the upright size of a file's image; None where its notes stand behind its pixels, as they may in a PNG, and for a TIFF,
    which turns itself when its pixels are read."""
    if image.format == "TIFF":
        return None
    if image.format == "PNG" and "exif" not in image.info:
        file: Any = vars(image)["fp"]
        return None if b"eXIf" in bytes(file.getbuffer()[-MOST_NOTES:]) else image.size
    return image.size if _turn_of(image) not in SIDEWAYS else (image.height, image.width)


def _digest_of(image: Image) -> str:
    """Return the digest of a picture that has no encoded bytes."""
    head = f"{image.mode} {image.size}".encode()
    return hashlib.sha256(head + image.tobytes()).hexdigest()


# --- what was given → encoded bytes or an image that is not decoded yet ---------------------------------------------------


def _encoded(given: object, limits: PictureLimits) -> tuple[bytes | str, bytes]:
    """Return where the encoded bytes of what is neither an image nor an array come from (themselves, or a path), and them."""
    if isinstance(given, Mapping):
        parts = [given.get("bytes"), given.get("path")]
        given = next((part for part in parts if part is not None), None)
        if given is None:
            raise _Unusable("the mapping has neither bytes nor a path. Give {'bytes': ...} or {'path': ...}.")
    if isinstance(given, bytes | bytearray | memoryview):
        _check_bytes(len(given), limits)
        return bytes(given), bytes(given)
    if isinstance(given, str) and given[:5].lower() == "data:":
        data = _of_data(given, limits)
        return data, data
    if isinstance(given, str) and limits.urls and _ADDRESS.match(given):
        return _of_address(given, limits)
    if isinstance(given, str | os.PathLike):
        return _of_path(os.fspath(given), limits)
    if given is None:
        raise _Unusable("it is None. Leave it out of the list; a row without pictures has an empty list.")
    made = ", which the library datasets makes of an array" if isinstance(given, list) else ""
    raise _Unusable(
        f"it is of the type {type(given).__name__}{made}. Give a path, bytes, a PIL image, an array of uint8 with channels last, or a data URI."
    )


def _of_data(uri: str, limits: PictureLimits) -> bytes:
    """Return the bytes of a data URI."""
    head, comma, body = uri.partition(",")
    _check_bytes(len(body) * 3 // 4, limits)
    if not comma or not _DATA.match(head):
        raise _Unusable(f"{excerpt(uri, SHOWN)!r} is no picture as base64. Write data:image/png;base64,DATA.")
    try:
        return base64.b64decode(unquote_to_bytes(body), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _Unusable("its base64 is broken. Encode the file again, without line breaks.") from error


def _of_address(url: str, limits: PictureLimits) -> tuple[bytes, bytes]:
    """Return what lies at an address, which is kept: it may be another picture the next time."""
    from covey.vision.fetching import NotFetched, fetched

    try:
        data = fetched(url)
    except NotFetched as error:
        raise _Unusable(
            f"{excerpt(url, SHOWN)!r} {error}. Download it, and give the path or the bytes."
        ) from error
    _check_bytes(len(data), limits)
    return data, data


def _of_path(given: str | bytes, limits: PictureLimits) -> tuple[str, bytes]:
    """Return path and bytes of a regular file below the root; it is closed again."""
    name, folder = os.fsdecode(given), limits.root
    shown = repr(excerpt(name, SHOWN))
    if _ADDRESS.match(name):
        raise _Unusable(
            f"{shown} is an address, and nothing is fetched. Download it, and give the path or the bytes; or set allow_image_urls=True, which "
            "fetches from https://."
        )
    if isinstance(given, ColumnPath):
        name, folder = os.path.abspath(name), Path("/")
    if folder is None:
        raise _Unusable(
            f"{shown} is a path, and no folder is named that paths lie below. Name it (image_root), or give the bytes."
        )
    root = Path(os.path.realpath(folder))
    try:
        path = Path(os.path.realpath(root / name))
        if not path.is_relative_to(root):
            raise _Unusable(
                f"{shown} lies outside of {excerpt(str(root), OF_FOLDER)}. Move the file below it, or name a folder above both."
            )
        with open(path, "rb", opener=_at_once) as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise _Unusable(f"{shown} is no file. Give the path of a picture.")
            _check_bytes(facts.st_size, limits)
            return str(path), file.read(facts.st_size)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        sought = f"Paths are looked for below {excerpt(str(root), OF_FOLDER)}{'' if root.is_dir() else ', which is no folder'}."
        if isinstance(given, ColumnPath):
            sought = f"An Image column's paths are taken as they are, from the working folder {excerpt(os.getcwd(), OF_FOLDER)}."
        raise _Unusable(f"{shown} cannot be read: {reason}. {sought}") from error


def _at_once(path: str, flags: int) -> int:
    """Open a file; a pipe or a device is not waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _of_file(data: bytes) -> Image:
    """Return an image whose head is read and whose pixels are not."""
    import PIL.Image

    try:
        with _strictly():
            return PIL.Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception as error:  # of decoders of foreign bytes, which raise anything
        what = "is empty" if not data else f"begins with {data[:8]!r}"
        raise _Unusable(
            f"it is no picture that is read ({what}). {', '.join(FORMATS)} are; convert it, repair the file, or {LEFT_OUT}."
        ) from error


def _of_array(array: np.ndarray[Any, Any], limits: PictureLimits) -> Image:
    """Return an array as an image."""
    import PIL.Image

    shape = array.shape
    if array.ndim == 3 and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4):
        raise _Unusable(
            f"the array has the shape {shape}: channels come last. Give array.transpose(1, 2, 0)."
        )
    if array.ndim not in (2, 3) or (array.ndim == 3 and shape[2] not in (1, 3, 4)) or not array.size:
        raise _Unusable(
            f"the array has the shape {shape}. Give (height, width), or with 1, 3 or 4 channels behind."
        )
    if array.dtype != np.uint8:
        raise _Unusable(
            f"the array holds {array.dtype}, whose range is not known. Scale it to 0 to 255: (255 * array).round().astype('uint8') for 0 to 1."
        )
    _check_size((shape[1], shape[0]), limits)
    return PIL.Image.fromarray(np.ascontiguousarray(array[..., 0] if shape[2:] == (1,) else array))


def _check_bytes(size: int, limits: PictureLimits) -> None:
    if size > limits.megabytes * 1e6:
        raise _Unusable(
            f"it has {size / 1e6:,.0f} MB, and {limits.megabytes:g} are read at most. Scale it down, or save it as JPEG or WebP."
        )


def _check_size(size: tuple[int, int], limits: PictureLimits) -> None:
    """Refuse a picture by its width and height alone."""
    width, height = size
    if width * height > limits.megapixels * 1e6:
        raise _Unusable(
            f"it is {width} x {height}, {width * height / 1e6:,.0f} megapixels, and {limits.megapixels:g} are opened at most. Scale it "
            "down, or raise max_image_megapixels."
        )
    if not min(size) or max(size) > limits.ratio * min(size):
        raise _Unusable(
            f"it is {width} x {height}: one side is more than {limits.ratio:g} times the other. Crop it, or {LEFT_OUT}."
        )


# --- an image → upright RGB -----------------------------------------------------------------------------------------------


@contextmanager
def _strictly() -> Iterator[None]:
    """Take no broken file for a whole one inside, whatever another library has switched on for the process, and leave it to
    `PictureLimits` what is too large: Pillow has a limit of its own for a head that was read."""
    from PIL import Image, ImageFile

    with _whole_files:
        before = ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS
        ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = False, None
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = before


def _loaded(image: Image) -> Image:
    """Return the image with its pixels decoded, all of them."""
    try:
        with _strictly():
            image.load()
    except Exception as error:  # of decoders of foreign bytes, which raise anything
        raise _Unusable(
            f"it cannot be decoded: {excerpt(str(error), SHOWN) or type(error).__name__}. The file is cut off or damaged: repair it, or "
            f"{LEFT_OUT}."
        ) from error
    return image


def _turn_of(image: Image) -> str | None:
    """Return Pillow's name of what makes an image upright; None where nothing has to."""
    try:
        return TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # EXIF that cannot be read turns nothing
        return None


def _upright(image: Image) -> Image:
    """Return the image as its EXIF says that it is to be seen; a copy only where it is turned."""
    import PIL.Image

    turn = _turn_of(image)
    return image if turn is None else image.transpose(getattr(PIL.Image.Transpose, turn))


def _in_colours(image: Image) -> Image:
    """Return the image in RGB, over white where it is transparent, without anything else that the file said."""
    import PIL.Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        image = _of_16_bits(image)
    try:
        if image.has_transparency_data:
            image = image.convert("RGBA")
            white = PIL.Image.new("RGBA", image.size, (255, 255, 255, 255))
            image = PIL.Image.alpha_composite(white, image)
        if image.mode in ("I", "F"):
            raise ValueError(f"numbers of mode {image.mode} have no range")
        plain = image.convert("RGB")
    except ValueError as error:
        raise _Unusable(
            f"its colours ({image.mode}) cannot be made RGB: {error}. Convert it to RGB with 8 bits."
        ) from error
    plain.info = {}
    return plain


def _of_16_bits(image: Image) -> Image:
    """Return grey of 16 bits in 8, scaled; a value that the file calls transparent is white."""
    import PIL.Image

    values = np.asarray(image).astype(np.float64)
    grey = np.rint(values * (255 / 65535)).clip(0, 255).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[values == clear] = 255
    return PIL.Image.fromarray(grey)
