"""Pictures: the same pixels whatever the way they are given, and one error with a place and a way out for what is hostile."""

import base64
import io
import os
import struct
import threading
import tracemalloc
import zlib

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image, ImageFile

from covey.errors import DatasetError
from covey.vision.pictures import ColumnPath, PictureError, PictureLimits, open_picture, picture_of, reopened
from tests.clocks import own_seconds

pytestmark = pytest.mark.any_version

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
PICTURE = Image.fromarray(PIXELS)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


PNG = encoded(PICTURE)


def opened(given, **limits):
    return np.asarray(open_picture(given, 3, "image", 1, PictureLimits(**limits)))


def refused(given, *words, **limits):
    """The message of the one error, which names the place; it costs little memory, whatever was given."""
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError) as caught:
            open_picture(given, 3, "image", 1, PictureLimits(**limits))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith("Row 3, column 'image', picture 1: ") and len(message) < 700
    assert message.count(".") >= 2 and "Traceback" not in message  # what is wrong, and what to do
    assert all(word in message for word in words), message
    assert peak < 50e6
    return message


# --- one picture, many ways -----------------------------------------------------------------------------------------------


def test_one_picture_is_the_same_in_every_way(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.png").write_bytes(PNG)
    uri = "data:image/png;base64," + base64.b64encode(PNG).decode()
    for given in (
        PNG, bytearray(PNG), memoryview(PNG), {"bytes": PNG, "path": None}, {"bytes": PNG, "path": "elsewhere.png"},
        {"bytes": None, "path": "deep/a.png"}, {"path": str(tmp_path / "deep" / "a.png")}, "deep/a.png", tmp_path / "deep" / "a.png",
        PICTURE, Image.open(io.BytesIO(PNG)), PIXELS, np.asfortranarray(PIXELS), uri, uri.replace("data", "DATA", 1),
        uri.replace("image/png", ""), uri.replace("+", "%2B"),
    ):  # fmt: skip
        assert (opened(given, root=tmp_path) == PIXELS).all(), type(given)


def test_what_comes_back_is_rgb_and_belongs_to_nobody_else():
    for given in (PICTURE, PIXELS, PICTURE.convert("L"), encoded(PICTURE, "BMP")):
        image = open_picture(given, 0, "image")
        assert image.mode == "RGB" and image.size == (5, 7) and image.info == {}
        image.putpixel((0, 0), (1, 2, 3))
    assert (np.asarray(PICTURE) == PIXELS).all()
    fresh = PIXELS.copy()
    assert open_picture(fresh, 0, "image").getpixel((0, 0)) == tuple(PIXELS[0, 0])


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "WEBP", "JPEG"])
def test_each_format_is_read(kind):
    whole = (
        {"quality": 100, "lossless": True} if kind == "WEBP" else {"quality": 100} if kind == "JPEG" else {}
    )
    flat = Image.new("RGB", (8, 8), (200, 100, 50))
    found = opened(encoded(flat, kind, **whole)).astype(int)
    assert abs(found - (200, 100, 50)).max() <= (2 if kind == "JPEG" else 0)


def test_grey_and_black_and_white():
    grey = PIXELS[..., 0]
    for given in (grey, grey[..., None], encoded(Image.fromarray(grey))):
        assert (opened(given) == grey[..., None]).all()
    bits = Image.fromarray(np.where(grey > 127, 255, 0).astype(np.uint8)).convert("1")
    assert set(np.unique(opened(encoded(bits)))) == {0, 255}


def test_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        more = {"lossless": True} if kind == "WEBP" else {}
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **more)
        assert (opened(data) == (255, 0, 0)).all(), kind


# --- upright ----------------------------------------------------------------------------------------------------------------


def with_orientation(image, number, kind):
    exif = Image.Exif()
    exif[0x0112] = number
    return encoded(image, kind, exif=exif, **({"quality": 100, "subsampling": 0} if kind == "JPEG" else {}))


AS_SEEN = {
    1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1), 6: lambda a: a.swapaxes(0, 1)[:, ::-1], 7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[::-1],
}  # fmt: skip
"""What EXIF's orientations mean: how stored rows and columns are to be seen."""


@pytest.mark.parametrize("number", AS_SEEN)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG", "WEBP"])
def test_pictures_stand_as_exif_says(kind, number):
    blocks = np.zeros((32, 16, 3), np.uint8)
    blocks[:16], blocks[16:, 8:] = 220, 120  # no turn of it looks like another
    data = with_orientation(Image.fromarray(blocks), number, kind)
    for given in (data, Image.open(io.BytesIO(data))):
        found = opened(given).astype(int)
        expected = AS_SEEN[number](blocks)
        assert found.shape == expected.shape
        assert abs(found - expected).mean() < 12, "lossy at edges only"


@pytest.mark.parametrize("number", [0, 9, 65535])
def test_an_orientation_that_is_none_turns_nothing(number):
    assert opened(with_orientation(PICTURE, number, "PNG")).shape == (7, 5, 3)


def test_broken_exif_turns_nothing():
    assert opened(encoded(PICTURE, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")).shape == (7, 5, 3)


# --- colours ------------------------------------------------------------------------------------------------------------------


def test_transparent_is_white_and_half_is_half():
    layer = np.array([[[10, 20, 30, 0], [10, 20, 30, 255], [0, 0, 0, 128]]], np.uint8)
    expected = [[255, 255, 255], [10, 20, 30], [127, 127, 127]]
    for given in (layer, encoded(Image.fromarray(layer)), Image.fromarray(layer)):
        assert opened(given)[0].tolist() == expected
    grey = Image.fromarray(np.array([[[40, 0], [40, 255]]], np.uint8), "LA")
    assert opened(encoded(grey))[0, :, 0].tolist() == [255, 40]


def test_a_colour_that_a_file_calls_transparent_is_white():
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putdata([0, 1])
    assert opened(encoded(palette))[0].tolist() == [[10, 20, 30], [200, 100, 50]]
    for kind in ("PNG", "GIF"):
        assert opened(encoded(palette, kind, transparency=0))[0].tolist() == [[255] * 3, [200, 100, 50]]
    some = bytes([128, 255])  # a table of alphas
    assert opened(encoded(palette, transparency=some))[0, 0].tolist() == [132, 137, 142]
    plain = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    assert opened(encoded(plain, transparency=(1, 2, 3)))[0].tolist() == [[255] * 3, [4, 5, 6]]
    grey = Image.fromarray(np.array([[7, 8]], np.uint8))
    assert opened(encoded(grey, transparency=7))[0, :, 0].tolist() == [255, 8]


def test_cmyk_is_ink():
    inks = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    for given in (inks, encoded(inks, "TIFF"), encoded(inks, "JPEG", quality=100)):
        red, green, blue = opened(given)[4, 4].astype(int)
        assert red > 245 and green < 10 and blue < 10


def sixteen(values, byte_order="<"):
    return Image.fromarray(np.array([values], np.dtype(byte_order + "u2")))


def test_16_bits_are_scaled_and_not_clipped():
    values = [0, 257, 33_000, 40_000, 65_535]
    for given in (sixteen(values), encoded(sixteen(values)), encoded(sixteen(values), "TIFF")):
        assert opened(given)[0, :, 0].tolist() == [0, 1, 128, 156, 255]
    assert opened(encoded(sixteen([5, 40_000]), transparency=5))[0, :, 0].tolist() == [255, 156]


def test_numbers_without_a_range_are_refused():
    for dtype in (np.int32, np.float32):
        refused(Image.fromarray(np.ones((2, 2), dtype)), "no range", "RGB with 8 bits")


def test_nothing_of_where_it_was_taken_is_left():
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    exif.get_ifd(0x8825)[1] = "N"
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        image = open_picture(encoded(PICTURE, kind, exif=exif), 0, "image")
        again = encoded(image, "PNG") + encoded(image, "JPEG") + encoded(image, "WEBP")
        assert b"home" not in again and b"Exif" not in again and b"eXIf" not in again


# --- limits and attacks -------------------------------------------------------------------------------------------------------


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def bomb(width, height):
    """A PNG of some kilobytes that opens to width x height pixels."""
    rows = zlib.compress(bytes(1 << 20), 9)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_by_its_head():
    refused(
        bomb(20_000, 20_000),
        "20000 x 20000",
        "400 megapixels, and 89 are opened",
        "Scale it down",
        "max_image_megapixels",
    )
    refused(bomb(10_000, 10_000), "10000 x 10000", "100 megapixels, and 89 are opened", "Scale it down")
    refused(bomb(3000, 3000), "9 megapixels, and 5 are", megapixels=5.0)
    refused(Image.open(io.BytesIO(bomb(9000, 9000))), "81 megapixels, and 50 are", megapixels=50.0)
    refused(np.broadcast_to(np.uint8(0), (10_000, 10_000)), "100 megapixels")
    assert Image.MAX_IMAGE_PIXELS == 1024**3 // 12  # Pillow's own, for everybody else


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_a_limit_above_pillows_own_acts():
    assert picture_of(bomb(20_000, 20_000), limits=PictureLimits(megapixels=500)).size == (20_000, 20_000)


def test_another_file_is_not_decoded_in_the_place_of_one_that_was_seen(tmp_path):
    """Its limits were those of the one before."""
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    seen = picture_of(str(path), limits=PictureLimits(tmp_path))
    path.write_bytes(bomb(60_000, 60_000))
    with own_seconds(0.5), pytest.raises(PictureError, match="has changed since"):
        reopened(seen)


def test_a_bomb_of_text_beside_the_pixels_ends_in_an_error_or_in_the_picture():
    text = chunk(b"zTXt", b"c\0\0" + zlib.compress(bytes(40 << 20), 9))
    refused(PNG[:33] + text + PNG[33:])


def test_slender_and_empty_pictures(tmp_path):
    refused(Image.new("RGB", (1, 300)), "1 x 300", "200 times", "Crop it", "bad_images='drop'")
    assert opened(Image.new("RGB", (2, 300))).shape == (300, 2, 3)
    refused(Image.new("RGB", (0, 5)), "0 x 5")
    refused(b"", "is empty", "PNG, JPEG")


def test_more_bytes_than_are_read(tmp_path):
    big = bytes(2_000_001)
    (tmp_path / "big.png").write_bytes(big)
    uri = "data:image/png;base64," + base64.b64encode(big).decode()
    for given in (big, {"bytes": big}, "big.png", uri):
        refused(given, "2 MB, and 2 are read at most", root=tmp_path, megabytes=2.0)


def test_what_is_no_picture():
    refused(b"hello, this is text", "begins with b'hello, t'", "convert it")
    refused(b"\x89PNG\r\n\x1a\n", "convert it")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    refused(eps, "PNG, JPEG, WEBP, GIF, BMP, TIFF are")  # Pillow would start Ghostscript
    refused(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "convert it")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
@pytest.mark.parametrize("switched", [False, True])
def test_a_file_that_is_cut_off_is_refused_whatever_the_process_has_switched_on(kind, switched, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", switched)
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    for share in (0.3, 0.6, 0.9):
        refused(data[: int(share * len(data))])
    assert ImageFile.LOAD_TRUNCATED_IMAGES is switched


def test_random_damage_is_a_picture_or_one_error():
    random = np.random.default_rng(2)
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        data = bytearray(encoded(PICTURE.resize((24, 16)), kind))
        for _ in range(40):
            broken = bytearray(data)
            for place in random.integers(0, len(data), 3):
                broken[place] = random.integers(0, 256)
            try:
                assert open_picture(bytes(broken), 3, "image").mode == "RGB"
            except DatasetError as error:
                assert str(error).startswith("Row 3, column 'image', picture 0: ")


# --- paths and addresses ------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    (tmp_path / "secret.png").write_bytes(PNG)
    root = tmp_path / "data"
    root.mkdir()
    (root / "a.png").write_bytes(PNG)
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "inside.png").symlink_to(root / "a.png")
    (root / "up").symlink_to(tmp_path)
    (root / "folder").mkdir()
    return root


def test_paths_stay_below_the_root(root):
    for given in (
        "a.png",
        "./a.png",
        "folder/../a.png",
        "inside.png",
        str(root / "a.png"),
        b"a.png" and root / "a.png",
    ):
        assert opened(given, root=root).shape == (7, 5, 3)
    for given in (
        "../secret.png", "folder/../../secret.png", str(root.parent / "secret.png"), "link.png", "up/secret.png", "/etc/hostname",
        {"path": "../secret.png", "bytes": None}, root / ".." / "secret.png",
    ):  # fmt: skip
        refused(given, "lies outside of", root=root)
    # a sibling whose name begins as the root's
    (root.parent / "data2").mkdir()
    (root.parent / "data2" / "b.png").write_bytes(PNG)
    refused("../data2/b.png", "lies outside of", root=root)


def test_a_path_without_a_root_is_not_opened(root):
    refused(str(root / "a.png"), "no folder is named", "give the bytes")


def test_what_is_no_file(root):
    os.mkfifo(root / "pipe.png")
    refused("pipe.png", "is no file", root=root)  # and does not wait
    for given in ("missing.png", "folder", "image", "", "a\0.png", "x" * 5000):
        refused(given, "Paths are looked for below", root=root)


def test_a_missing_file_is_said_to_be_sought_where_it_was(root, monkeypatch):
    refused("a.png", f"below {root / 'nowhere'}, which is no folder", root=root / "nowhere")
    assert "no folder" not in refused("missing.png", f"below {root}.", root=root)
    monkeypatch.chdir(root / "folder")
    message = refused(ColumnPath("missing.png"), f"from the working folder {root / 'folder'}", root=root)
    assert "below" not in message


def test_an_array_that_became_a_list_is_told_from_other_things():
    from datasets import Dataset

    [row] = Dataset.from_list([{"image": np.zeros((4, 4, 3), np.uint8)}])
    refused(row["image"], "of the type list, which the library datasets makes of an array")
    assert "datasets" not in refused(42, "of the type int. Give")


def test_files_are_closed(root):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert opened("a.png", root=root).shape == (7, 5, 3)
        refused("folder", root=root)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_no_address_is_fetched(root, monkeypatch):
    import socket

    def trap(*_, **__):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "socket", trap)
    monkeypatch.setattr(socket, "getaddrinfo", trap)
    for given in (
        "http://host/a.png", "HTTPS://host/a.png", "ftp://host/a.png", "file:///etc/hostname", "s3://bucket/a.png", "//host/a.png",
        {"path": "https://user:password@host/a.png"},
    ):  # fmt: skip
        message = refused(given, "nothing is fetched", "Download it", root=root)
        assert "password" not in message


def test_data_uris(root):
    body = base64.b64encode(PNG).decode()
    refused("data:image/png," + body, "no picture as base64", "data:image/png;base64,DATA")
    refused("data:image/png;base64" + body, "no picture as base64")
    refused("data:" + "x" * 5000 + ";base64," + body, "no picture as base64")
    refused("data:image/png;base64," + body[:40] + "!!!!" + body[40:], "base64 is broken")
    refused("data:image/png;base64," + body[:-1], "base64 is broken")
    refused("data:image/png;base64,", "is empty")
    refused("data:text/html;base64," + base64.b64encode(b"<script>").decode(), "no picture that is read")


# --- other values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, ["it is None", "Leave it out of the list"]),
        ({}, ["neither bytes nor a path"]),
        ({"bytes": None, "path": None}, ["neither bytes nor a path"]),
        ({"bytes": 3}, ["of the type int"]),
        (7, ["of the type int", "Give a path"]),
        ([[0, 1], [2, 3]], ["of the type list"]),
        ([PNG], ["of the type list"]),
        (np.zeros((2, 2), np.float32), ["float32", "255 * array"]),
        (np.zeros((2, 2), bool), ["bool"]),
        (np.zeros((3, 8, 9), np.uint8), ["channels come last", "transpose(1, 2, 0)"]),
        (np.zeros((8, 9, 2), np.uint8), ["(8, 9, 2)", "1, 3 or 4"]),
        (np.zeros((1, 8, 9, 3), np.uint8), ["(1, 8, 9, 3)"]),
        (np.zeros((0, 9, 3), np.uint8), ["(0, 9, 3)"]),
        (np.zeros(9, np.uint8), ["(9,)"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_picture_is_named(given, words):
    refused(given, *words)


def test_a_closed_image_of_the_caller_is_an_error():
    image = Image.open(io.BytesIO(PNG))
    image.fp.close()
    refused(image, "cannot be decoded")


def test_names_that_are_hostile_are_shown_as_text(root):
    message = refused("\x1b[31m\u202egnp.a", root=root)
    assert "\x1b" not in message and "\u202e" not in message


def test_many_threads_open_pictures_side_by_side(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    cut, faults = encoded(PICTURE.resize((64, 64)), "JPEG")[:-200], []

    def work():
        for _ in range(10):
            try:
                assert (opened(PNG) == PIXELS).all()
                with pytest.raises(DatasetError):
                    open_picture(cut, 0, "image")
            except BaseException as error:
                faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == [] and ImageFile.LOAD_TRUNCATED_IMAGES is True
