"""Trains a byte-level BPE of 32,000 tokens and encodes with it: Trainyard and `tokenizers` in turn, one thread each.

The text is the King James Bible as Debian ships it, or --text. `tokenizers` encodes in the fastest way that it has
(encode_batch_fast, without offsets, over parts of 20 kB), Trainyard the whole text at once. That the ids are the same is
held by tests/parity.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
TOOL = pathlib.Path(os.environ.get("TRAINYARD_BIN", REPOSITORY / "build/bin")).parent / "tests/tokenize"
VOCAB = 32000


def tool(*arguments):
    done = subprocess.run([TOOL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return done.stdout.decode()


def their_training(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    start = time.perf_counter()
    tokenizer.train_from_iterator([text], trainer)
    return time.perf_counter() - start


def parts_of(text):
    parts = [""]
    for line in text.splitlines(keepends=True):
        if len(parts[-1]) > 20000:
            parts.append("")
        parts[-1] += line
    return parts


def their_encoding(tokenizer, parts):
    start = time.perf_counter()
    encoded = tokenizer.encode_batch_fast(parts, add_special_tokens=False)
    seconds = time.perf_counter() - start
    return seconds, sum(len(e.ids) for e in encoded)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(options.text or f"{folder}/text")
        if not options.text:
            verses = subprocess.run(["bible", "-f", "-l9999", "gen1:1-rev22:21"], stdout=subprocess.PIPE, check=True)
            path.write_bytes(verses.stdout)
        text = path.read_text()
        megabytes = path.stat().st_size / 1e6
        file = pathlib.Path(folder) / "tokenizer.json"
        file.write_text(tool("train", path, VOCAB))
        tokenizer, parts = Tokenizer.from_file(str(file)), parts_of(text)
        seconds = {"train": ([], []), "encode": ([], [])}
        for _ in range(options.rounds):
            seconds["train"][0].append(float(tool("time-train", path, VOCAB, 1)))
            seconds["train"][1].append(their_training(text))
            seconds["encode"][0].append(float(tool("time", file, path, 1)))
            seconds["encode"][1].append(their_encoding(tokenizer, parts)[0])
    print(f"{megabytes:.1f} MB, {VOCAB} tokens, medians of {options.rounds}")
    result = {}
    print(f"{'':8}  {'Trainyard MB/s':>15}  {'tokenizers MB/s':>15}  {'ratio':>6}")
    for what, (ours, theirs) in seconds.items():
        ours, theirs = statistics.median(ours), statistics.median(theirs)
        print(f"{what:8}  {megabytes / ours:>15.1f}  {megabytes / theirs:>15.1f}  {theirs / ours:>6.1f}")
        result |= {f"{what}_mb_per_second": round(megabytes / ours, 1), f"{what}_ratio": round(theirs / ours, 2)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
