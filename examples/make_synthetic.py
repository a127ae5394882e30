#!/usr/bin/env python3
"""Makes seeded shards for runs that measure speed: samples that all fill exactly the same positions.

    examples/make_synthetic.py OUTPUT_DIRECTORY [--samples 256] [--images 4] [--images-min N] [--image-size 336]
        [--patch-size 14] [--noise] [--sounds 0] [--sounds-min N] [--frames 200] [--target-rows 0]
        [--target-hidden 64] [--positions 4096] [--positions-min N] [--words 1000] [--shards 4] [--seed 17]

writes synthetic-000.tar .. and synthetic.model. With the defaults a sample has four 336-pixel images (576
rows each) and as many words as fill 4096 positions: positions - images * rows. Each word of the
tokenizer's list is one piece, so the count is exact without a tokenizer at hand. Images are coarse
blocks of seeded colours, so that they decode like pictures and compress to a few kilobytes.

Speed that a device's power limits depends on how many bits toggle: flat colours and few words run at a
higher clock than real data. --noise makes every pixel random (images of 340 kB), and --words draws from
that many words: with --words 128227 every row of a vocabulary of 128,256 is a piece.

--images-min draws the images of each sample from the seed, between that and --images; --positions-min the positions that
it fills, so that samples differ in length. --sounds adds WAV
files (16 kHz, tones of seeded pitch) that fill --frames feature frames, frames / 2 rows each; --sounds-min
as for images. --target-rows adds KEY.target.npy of normal values, for regressors of --target-hidden.

Needs Python 3.9 and its standard library alone; pictures are PNG, or JPEG (--format jpeg) where Pillow is
installed. The same arguments give the same bytes; a second run returns at once.
"""

import argparse
import array
import hashlib
import io
import itertools
import json
import math
import os
import pathlib
import random
import struct
import sys
import tarfile
import tempfile
import wave
import zlib

MANIFEST = "synthetic.json"
SPACE = "\u2581"
SOUND_RATE = 16000  # hertz
SOUND_HOP = 160  # samples of a frame
NOTES = 10  # of a sound


LETTERS = "abcdefghijklmnopqrstuvwxyz"
SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
WORDS_MAX = len(SYLLABLES) ** 3


def words(count):
    """Words of three syllables, all different and equally long: none is the beginning of another, so each stays whole."""
    firsts, fewest = len(SYLLABLES), [12, 2]  # the first 1,440 words have these many second and third syllables
    if count > firsts * fewest[0] * fewest[1]:
        fewest = [firsts, firsts]
    every = (x + y + z for x in SYLLABLES for y in SYLLABLES[: fewest[0]] for z in SYLLABLES[: fewest[1]])
    return list(itertools.islice(every, count))


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, content):
    """One field of a protobuf message: bytes, an int or a float."""
    if isinstance(content, bytes):
        return varint(number << 3 | 2) + varint(len(content)) + content
    if isinstance(content, float):
        return varint(number << 3 | 5) + struct.pack("<f", content)
    return varint(number << 3) + varint(content)


def tokenizer_model(count):
    """A sentencepiece model (unigram, no normalisation) whose pieces are the words and the letters."""
    unknown, control = 2, 3
    pieces = [("<unk>", 0.0, unknown), ("</s>", 0.0, control)]
    pieces += [(SPACE + word, -5.0, None) for word in words(count)]
    pieces += [(letter, -20.0, None) for letter in SPACE + LETTERS]
    model = b""
    for text, score, kind in pieces:
        piece = field(1, text.encode()) + field(2, score)
        if kind is not None:
            piece += field(3, kind)
        model += field(1, piece)
    # Trainer: unigram; unknown 0, no beginning, end 1, no padding. Normaliser: identity.
    none = (1 << 64) - 1  # -1
    trainer = field(3, 1) + field(4, len(pieces)) + field(40, 0) + field(41, none) + field(42, 1) + field(43, none)
    return model + field(2, trainer) + field(3, field(1, b"identity"))


def blocks(generator, size):
    """Rows of an RGB picture of 12 x 12 blocks."""
    cells = 12
    colours = [[bytes(generator.randrange(256) for _ in range(3)) for _ in range(cells)] for _ in range(cells)]
    columns = [x * cells // size for x in range(size)]
    lines = [b"".join(row[column] for column in columns) for row in colours]
    return [lines[y * cells // size] for y in range(size)]


def noise(generator, size):
    """Rows of an RGB picture whose every pixel is random."""
    return [generator.randbytes(3 * size) for _ in range(size)]


def encode_png(rows, size):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def encode_jpeg(rows, size):
    from PIL import Image

    out = io.BytesIO()
    Image.frombytes("RGB", (size, size), b"".join(rows)).save(out, "JPEG", quality=75)
    return out.getvalue()


def little_endian(values):
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def encode_wav(generator, frames):
    """Notes one after another, each of a whole number of samples a period."""
    count, samples = frames * SOUND_HOP, array.array("h")
    for note in range(NOTES):
        period = generator.randrange(10, 100)
        wave_form = [round(12000 * math.sin(2 * math.pi * i / period)) for i in range(period)]
        length = count * (note + 1) // NOTES - count * note // NOTES
        samples.extend((wave_form * (length // period + 1))[:length])
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, SOUND_RATE, count, "NONE", ""))
        file.writeframes(little_endian(samples))
    return out.getvalue()


def encode_npy(generator, rows, columns):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    values = array.array("f", (generator.gauss(0, 1) for _ in range(rows * columns)))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + little_endian(values)


def rows_of(options, images, sounds):
    return images * (options.image_size // options.patch_size) ** 2 + sounds * (options.frames // 2)


def make_sample(options, vocabulary, index):
    """[(suffix, content)] of one sample, a function of the seed and its index."""
    generator = random.Random(f"{options.seed}/{index}")
    images, sounds = options.images, options.sounds
    if options.images_min < images:
        images = generator.randint(options.images_min, images)
    if options.sounds_min < sounds:
        sounds = generator.randint(options.sounds_min, sounds)
    encode, suffix = (encode_jpeg, "jpg") if options.format == "jpeg" else (encode_png, "png")
    draw = noise if options.noise else blocks
    members = [
        (f"{image}.{suffix}", encode(draw(generator, options.image_size), options.image_size))
        for image in range(images)
    ]
    members += [(f"{images + sound}.wav", encode_wav(generator, options.frames)) for sound in range(sounds)]
    if options.target_rows > 0:
        members.append(("target.npy", encode_npy(generator, options.target_rows, options.target_hidden)))
    # The sequence is rows, words and the end token; its input positions are all but the last.
    positions = options.positions
    if options.positions_min < positions:
        positions = generator.randint(options.positions_min, positions)
    count = positions - rows_of(options, images, sounds)
    text = " ".join(vocabulary[generator.randrange(len(vocabulary))] for _ in range(count))
    return members + [("txt", ("<image>" * images + "<audio>" * sounds + text).encode())]


def write_shard(path, options, vocabulary, indices):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as shard:
        for index in indices:
            for suffix, content in make_sample(options, vocabulary, index):
                member = tarfile.TarInfo(f"{index:06d}.{suffix}")
                member.size = len(content)
                member.mode = 0o644
                shard.addfile(member, io.BytesIO(content))


def shard_name(i):
    return f"synthetic-{i:03d}.tar"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("output", type=pathlib.Path, help="folder for the shards and the tokenizer")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--images", type=int, default=4, help="of each sample")
    parser.add_argument("--images-min", type=int, help="draw their number from here to --images")
    parser.add_argument("--sounds", type=int, default=0, help="of each sample")
    parser.add_argument("--sounds-min", type=int, help="draw their number from here to --sounds")
    parser.add_argument("--frames", type=int, default=200, help="that a sound fills, 10 ms each; two give one row")
    parser.add_argument("--target-rows", type=int, default=0, help="of each sample's target; 0: none")
    parser.add_argument("--target-hidden", type=int, default=64, help="columns of a target")
    parser.add_argument("--image-size", type=int, default=336, help="pixels of a side")
    parser.add_argument("--patch-size", type=int, default=14, help="pixels of a side of what gives one row")
    parser.add_argument("--noise", action="store_true", help="every pixel random, not coarse blocks")
    parser.add_argument("--positions", type=int, default=4096, help="of each sample")
    parser.add_argument("--positions-min", type=int, help="draw their number from here to --positions")
    parser.add_argument("--words", type=int, default=1000, help="different words that texts are drawn from")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--format", choices=("png", "jpeg"), default="png")
    options = parser.parse_args()
    for name in ("images", "sounds"):
        most, least = getattr(options, name), getattr(options, f"{name}_min")
        if least is None:
            setattr(options, f"{name}_min", most)
        elif not 0 <= least <= most:
            parser.error(f"--{name}-min: {least}: must be between 0 and --{name} ({most})")
    rows = rows_of(options, options.images, options.sounds)
    if options.frames < 2 or options.frames % 2 != 0:
        parser.error(f"--frames: {options.frames}: must be even and at least 2")
    if not 0 <= options.target_rows <= options.positions or options.target_hidden < 1:
        parser.error(f"--target-rows: {options.target_rows}: must be between 0 and --positions, of at least 1 column")
    if options.image_size % options.patch_size != 0:
        parser.error(f"--image-size: {options.image_size}: must be a multiple of the patch size")
    if options.positions <= rows:
        parser.error(f"--positions: {options.positions}: must exceed the {rows} rows of images and sounds")
    if options.positions_min is None:
        options.positions_min = options.positions
    elif not rows < options.positions_min <= options.positions:
        parser.error(
            f"--positions-min: {options.positions_min}: must exceed the {rows} rows of images and sounds, "
            f"and be at most --positions ({options.positions})"
        )
    if not 1 <= options.words <= WORDS_MAX:
        parser.error(f"--words: {options.words}: must be between 1 and {WORDS_MAX}")
    if not 1 <= options.shards <= options.samples:
        parser.error(f"--shards: {options.shards}: must be between 1 and the number of samples")
    return options


def main():
    options = parse()
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    arguments = {name: value for name, value in sorted(vars(options).items()) if name != "output"}
    arguments["script"] = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    names = [shard_name(i) for i in range(options.shards)] + ["synthetic.model"]
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        fresh = manifest == {**arguments, "bytes": {name: (folder / name).stat().st_size for name in names}}
    except (OSError, ValueError):
        fresh = False
    if fresh:
        print(f"{folder}: up to date")
        return
    vocabulary = words(options.words)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as aside:
        for i in range(options.shards):
            first, last = options.samples * i // options.shards, options.samples * (i + 1) // options.shards
            write_shard(os.path.join(aside, shard_name(i)), options, vocabulary, range(first, last))
        (pathlib.Path(aside) / "synthetic.model").write_bytes(tokenizer_model(options.words))
        sizes = {name: os.stat(os.path.join(aside, name)).st_size for name in names}
        (pathlib.Path(aside) / MANIFEST).write_text(json.dumps({**arguments, "bytes": sizes}, indent=1) + "\n")
        for name in (*names, MANIFEST):
            os.replace(os.path.join(aside, name), folder / name)
    print(f"{folder}: {options.samples} samples of {options.positions} positions, {sum(sizes.values())} bytes")


if __name__ == "__main__":
    try:
        main()
    except ImportError as error:
        sys.exit(f"make_synthetic: {error}; use --format png")
