#!/usr/bin/python3
"""Makes the emoji data set: pictures of emoji with their English names, as WebDataset shards.

    examples/make_emoji.py OUTPUT_DIRECTORY [--speech] [--count N]

writes

    emoji-000.tar .. emoji-003.tar   training: KEY.png (136 x 128) and KEY.txt ("<image>grinning face")
    emoji-validation.tar             some 5 % of the samples, chosen by a hash of the key
    emoji.model                      a sentencepiece tokenizer of 512 pieces, trained on the training texts

from the Debian packages fonts-noto-color-emoji (the pictures), unicode-cldr-core (the names) and
sentencepiece (spm_train). Nothing else but Python's standard library is needed. The same packages give
the same bytes. A second run finds everything up to date and returns at once.

--speech adds KEY.1.flac, the name spoken by espeak-ng (16 kHz, one channel, brought there by sox; one or
two seconds each), and its mark: "<image><audio>grinning face". --count keeps so many samples of those
that would be made; the tokenizer is the same.
"""

import argparse
import concurrent.futures
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import xml.etree.ElementTree

FONT = "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
ANNOTATIONS = (
    "/usr/share/unicode/cldr/common/annotations/en.xml",
    "/usr/share/unicode/cldr/common/annotationsDerived/en.xml",
)
SHARDS = 4
VALIDATION_EVERY = 20  # one sample in so many
VOCABULARY = 512
VARIATION_SELECTOR = 0xFE0F
MANIFEST = "emoji.json"
SPEECH_RATE = 16000  # hertz
WORDS_PER_MINUTE = 300


class Font:
    """The tables of an OpenType font that lead from characters to PNG pictures."""

    def __init__(self, data):
        self.data = data
        count = self.u16(4)
        self.tables = {}
        for i in range(count):
            tag, _, offset, length = struct.unpack_from(">4sIII", data, 12 + 16 * i)
            self.tables[tag.decode("latin-1")] = offset
        self.glyphs = self._read_cmap()
        self.ligatures = self._read_ligatures()
        self.pictures = self._read_pictures()

    def u16(self, at):
        return struct.unpack_from(">H", self.data, at)[0]

    def u32(self, at):
        return struct.unpack_from(">I", self.data, at)[0]

    def picture(self, characters):
        """PNG bytes of a sequence of code points, or None if the font draws no single picture for it."""
        glyphs = [self.glyphs.get(c) for c in characters if c != VARIATION_SELECTOR]
        if not glyphs or None in glyphs:
            return None
        if len(glyphs) > 1:
            for rest, ligature in self.ligatures.get(glyphs[0], ()):
                if rest == glyphs[1:]:
                    return self.pictures.get(ligature)
            return None
        return self.pictures.get(glyphs[0])

    def _read_cmap(self):
        """Code point to glyph, from the 32-bit subtable (format 12)."""
        base = self.tables["cmap"]
        for i in range(self.u16(base + 2)):
            table = base + self.u32(base + 4 + 8 * i + 4)
            if self.u16(table) != 12:
                continue
            glyphs = {}
            for group in range(self.u32(table + 12)):
                first, last, glyph = struct.unpack_from(">III", self.data, table + 16 + 12 * group)
                for code in range(first, last + 1):
                    glyphs[code] = glyph + code - first
            return glyphs
        raise ValueError("the font has no 32-bit character map")

    def _coverage(self, at):
        if self.u16(at) == 1:
            return [self.u16(at + 4 + 2 * i) for i in range(self.u16(at + 2))]
        glyphs = []
        for i in range(self.u16(at + 2)):
            first, last, _ = struct.unpack_from(">HHH", self.data, at + 4 + 6 * i)
            glyphs.extend(range(first, last + 1))
        return glyphs

    def _read_ligatures(self):
        """First glyph to [(following glyphs, glyph of the whole)], from all ligature substitutions."""
        ligatures = {}
        base = self.tables["GSUB"]
        lookups = base + self.u16(base + 8)
        for i in range(self.u16(lookups)):
            lookup = lookups + self.u16(lookups + 2 + 2 * i)
            for j in range(self.u16(lookup + 4)):
                kind = self.u16(lookup)
                table = lookup + self.u16(lookup + 6 + 2 * j)
                if kind == 7:  # a 32-bit detour to a table of another kind
                    kind, table = self.u16(table + 2), table + self.u32(table + 4)
                if kind == 4:
                    self._read_ligature_table(table, ligatures)
        return ligatures

    def _read_ligature_table(self, table, ligatures):
        for k, first in enumerate(self._coverage(table + self.u16(table + 2))):
            group = table + self.u16(table + 6 + 2 * k)
            for m in range(self.u16(group)):
                entry = group + self.u16(group + 2 + 2 * m)
                rest = [self.u16(entry + 4 + 2 * n) for n in range(self.u16(entry + 2) - 1)]
                ligatures.setdefault(first, []).append((rest, self.u16(entry)))

    def _read_pictures(self):
        """Glyph to PNG bytes, from the first strike of CBLC and CBDT."""
        pictures = {}
        index, images = self.tables["CBLC"], self.tables["CBDT"]
        array = index + self.u32(index + 8)
        for i in range(self.u32(index + 16)):
            first, last, offset = struct.unpack_from(">HHI", self.data, array + 8 * i)
            table = array + offset
            index_format, image_format = self.u16(table), self.u16(table + 2)
            base = images + self.u32(table + 4)
            for glyph in range(first, last + 1):
                at = self._image_offset(table, index_format, glyph - first)
                if at is None:
                    continue
                # Formats 17 and 18: small or big metrics, then length and PNG; 19: none.
                skip = {17: 5, 18: 8, 19: 0}[image_format]
                start = base + at + skip
                length = self.u32(start)
                pictures[glyph] = self.data[start + 4 : start + 4 + length]
        return pictures

    def _image_offset(self, table, index_format, i):
        if index_format == 1:
            start, end = self.u32(table + 8 + 4 * i), self.u32(table + 12 + 4 * i)
        elif index_format == 3:
            start, end = self.u16(table + 8 + 2 * i), self.u16(table + 10 + 2 * i)
        else:
            raise ValueError(f"the font has an index of format {index_format}, which is not known here")
        return start if end > start else None


def read_names():
    """Character sequence to English name."""
    names = {}
    for path in ANNOTATIONS:
        for annotation in xml.etree.ElementTree.parse(path).iter("annotation"):
            if annotation.get("type") == "tts" and annotation.text:
                names.setdefault(annotation.get("cp"), " ".join(annotation.text.split()))
    return names


def key_of(name, characters):
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii").lower()
    slug = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")
    return slug or "u" + "_".join(f"{c:x}" for c in characters)


def make_samples():
    """[(key, {suffix: content})] in the order of a hash of the key, so that shards are well mixed."""
    with open(FONT, "rb") as file:
        font = Font(file.read())
    samples = {}
    for sequence, name in sorted(read_names().items()):
        characters = [ord(c) for c in sequence]
        picture = font.picture(characters)
        if picture is None:
            continue
        key = key_of(name, characters)
        if key in samples:
            key += "_" + "_".join(f"{c:x}" for c in characters)
        samples[key] = (f"<image>{name}", picture)
    ordered = sorted(samples, key=lambda key: (hash_of(key), key))
    return [(key, {"png": samples[key][1], "txt": samples[key][0].encode()}) for key in ordered]


def hash_of(key):
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def is_validation(key):
    return hash_of(key) % VALIDATION_EVERY == 0


def write_shard(path, samples):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as shard:
        for key, members in samples:
            for suffix, content in members.items():
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(content)
                member.mode = 0o644
                shard.addfile(member, io.BytesIO(content))


def name_of(members):
    return members["txt"].decode().replace("<image>", "").replace("<audio>", "")


def run(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{result.stderr[-2000:]}")


def speak(folder, index, text):
    """FLAC bytes of a text."""
    spoken, sound = os.path.join(folder, f"{index}.wav"), os.path.join(folder, f"{index}.flac")
    run(["espeak-ng", "-v", "en", "-s", str(WORDS_PER_MINUTE), "-w", spoken, "--", text])
    # Without dither, which is random.
    run(["sox", "-D", spoken, "-r", str(SPEECH_RATE), "-c", "1", "-b", "16", sound])
    content = pathlib.Path(sound).read_bytes()
    os.remove(spoken)
    os.remove(sound)
    return content


def add_speech(samples):
    """The same samples with their names spoken, several at a time."""

    def with_speech(place):
        index, (key, members) = place
        name = name_of(members)
        return key, {"png": members["png"], "1.flac": speak(folder, index, name), "txt": f"<image><audio>{name}".encode()}

    with tempfile.TemporaryDirectory(prefix="make_emoji-") as folder:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(with_speech, enumerate(samples)))


def train_tokenizer(folder, texts):
    # Run inside the folder: the model file keeps the names that it was given.
    with open(os.path.join(folder, "captions.txt"), "w", encoding="utf-8") as file:
        file.writelines(text + "\n" for text in texts)
    command = [
        "spm_train", "--input=captions.txt", "--model_prefix=emoji", f"--vocab_size={VOCABULARY}",
        "--model_type=unigram", "--character_coverage=1.0", "--unk_id=0", "--eos_id=1", "--bos_id=-1",
        "--pad_id=-1", "--num_threads=1", "--shuffle_input_sentence=false",
    ]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"spm_train failed:\n{result.stderr[-2000:]}")


def outputs():
    return [f"emoji-{i:03d}.tar" for i in range(SHARDS)] + ["emoji-validation.tar", "emoji.model"]


def inputs_digest(options):
    digest = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    tools = ("spm_train", "espeak-ng", "sox") if options.speech else ("spm_train",)
    for path in (FONT, *ANNOTATIONS, *map(shutil.which, tools)):
        status = os.stat(path)
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    digest.update(f"{options.speech} {options.count}\n".encode())
    return digest.hexdigest()


def up_to_date(folder, digest):
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sizes = {name: (folder / name).stat().st_size for name in outputs()}
    except (OSError, ValueError):
        return False
    return manifest.get("inputs") == digest and manifest.get("bytes") == sizes


def missing_packages(speech):
    needed = {FONT: "fonts-noto-color-emoji", ANNOTATIONS[0]: "unicode-cldr-core", ANNOTATIONS[1]: "unicode-cldr-core"}
    missing = {package for path, package in needed.items() if not os.path.exists(path)}
    programs = {"spm_train": "sentencepiece"}
    if speech:
        programs.update({"espeak-ng": "espeak-ng", "sox": "sox"})
    missing |= {package for program, package in programs.items() if shutil.which(program) is None}
    return sorted(missing)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("output", type=pathlib.Path, help="folder for the shards and the tokenizer")
    parser.add_argument("--speech", action="store_true", help="add the names, spoken")
    parser.add_argument("--count", type=int, help="samples to keep, training and validation together")
    options = parser.parse_args()
    folder = options.output
    if options.count is not None and options.count < 4 * VALIDATION_EVERY:
        parser.error(f"--count: {options.count}: must be at least {4 * VALIDATION_EVERY}")
    if missing := missing_packages(options.speech):
        sys.exit(f"make_emoji: missing Debian packages: {' '.join(missing)} (apt-get install them)")
    folder.mkdir(parents=True, exist_ok=True)
    digest = inputs_digest(options)
    if up_to_date(folder, digest):
        print(f"{folder}: up to date")
        return
    samples = make_samples()
    texts = [name_of(members) for key, members in samples if not is_validation(key)]
    samples = samples[: options.count]
    if options.speech:
        samples = add_speech(samples)
    validation = [s for s in samples if is_validation(s[0])]
    training = [s for s in samples if not is_validation(s[0])]
    # Everything is made aside and moved in at the end, the manifest last.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as aside:
        for i in range(SHARDS):
            write_shard(os.path.join(aside, f"emoji-{i:03d}.tar"), training[i::SHARDS])
        write_shard(os.path.join(aside, "emoji-validation.tar"), validation)
        train_tokenizer(aside, texts)
        sizes = {name: os.stat(os.path.join(aside, name)).st_size for name in outputs()}
        (pathlib.Path(aside) / MANIFEST).write_text(json.dumps({"inputs": digest, "bytes": sizes}, indent=1) + "\n")
        for name in (*outputs(), MANIFEST):
            os.replace(os.path.join(aside, name), folder / name)
    print(f"{folder}: {len(training)} training and {len(validation)} validation samples")


if __name__ == "__main__":
    main()
