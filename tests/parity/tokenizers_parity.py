"""Holds byte-level BPE against Hugging Face's `tokenizers` and transformers.

    tokenizers_parity.py --tool TOKENIZE --worker TRAINYARD_WORKER

The same text gives the same merges; the same tokenizer.json, ours or theirs, gives the same ids for text, code,
runs of white space and random Unicode; a checkpoint's tokenizer loads with AutoTokenizer and decodes.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


class Tool:
    """The program under test, with a folder for what it reads."""

    def __init__(self, path, folder):
        self.path, self.folder = path, folder

    def call(self, *arguments):
        done = subprocess.run([self.path, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, arguments))[:200]}: {done.stderr.decode()}")
        return done.stdout.decode()

    def write(self, name, text):
        path = self.folder / name
        path.write_bytes(text.encode())
        return path

    def train(self, text, vocab):
        return self.call("train", self.write("text", text), vocab)

    def encode(self, tokenizer, texts):
        path = self.write("tokenizer.json", tokenizer.to_str())
        return json.loads(self.call("encode", path, self.write("texts", json.dumps(texts))))


def random_text(rng, length, alphabet):
    return "".join(rng.choice(alphabet) for _ in range(length))


def random_unicode(rng, length):
    """Any code points, half of them from the planes that are in use."""
    text = []
    for _ in range(length):
        c = rng.randrange(0x110000) if rng.random() < 0.2 else rng.randrange(rng.choice((0x80, 0x600, 0x3200)))
        text.append(chr(c) if not 0xD800 <= c < 0xE000 else " ")
    return "".join(text)


def sources():
    """Text and code of this repository, in a fixed order."""
    paths = sorted(REPOSITORY.glob("*.md")) + sorted((REPOSITORY / "executor/data").rglob("*.cc"))
    return [path.read_text() for path in paths]


def texts_to_encode(rng):
    texts = sources()
    texts += [random_unicode(rng, 300) for _ in range(60)]
    texts += [random_text(rng, 200, " \t\n\r\u00a0\u3000\u2028ab1.'") for _ in range(60)]
    texts += [random_text(rng, 100, "'stremvlldSTREMVLLD\u017f \u212a") for _ in range(60)]
    texts += ["", " ", "  ", "\n", " \n ", "a", "'", "''s", "x" * 5000, " " * 3000, "ab" * 3000, "\u0000\u0001"]
    return texts


def every_letter():
    """Every code point that is a letter, number or space, and more, between such and a space."""
    return "".join(f"a{chr(c)}1{chr(c)} {chr(c)}" for c in range(0x33000) if not 0xD800 <= c < 0xE000)


def new_bpe(pre_tokenizer, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def trained(tokenizer, text, vocab, **options):
    trainer = trainers.BpeTrainer(vocab_size=vocab, min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def model_of(text):
    model = json.loads(text)["model"]
    return model["vocab"], [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]


def check_training(tool, rng):
    text = "\n".join(sources())
    cases = [(text, 256), (text, 300), (text, 2000), (text, 8000), (random_text(rng, 20000, "ab \n"), 2000),
             (random_text(rng, 20000, "abc'."), 3000), ("".join(random_unicode(rng, 20000)), 1500),
             ("aaaa aaa aa a " * 50, 300), (random_text(rng, 3000, "a\n") * 3, 600), ("x", 1000)]
    cases += [(random_text(rng, rng.randrange(500, 4000), "ab" if i % 2 else "abcd ") * 2, 1000) for i in range(40)]
    for i, (case, vocab) in enumerate(cases):
        ours = model_of(tool.train(case, vocab))
        theirs = model_of(trained(new_bpe(byte_level()), case, vocab).to_str())
        for what, a, b in zip(("vocabulary", "merges"), ours, theirs):
            if a == b:
                continue
            first = next((j for j, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            sys.exit(f"training case {i}, {vocab} tokens: the {what} differ at {first}: {len(a)} and {len(b)}")
    return len(cases)


def variants(tool):
    """Tokenizers of every kind that is read, by name."""
    text = "\n".join(sources())
    yield "ours", Tokenizer.from_str(tool.train(text, 3000))
    yield "GPT-2's kind", trained(new_bpe(byte_level()), text, 3000)
    yield "add_prefix_space", trained(new_bpe(byte_level(add_prefix_space=True)), text, 1000)
    yield "without a regex", trained(new_bpe(byte_level(use_regex=False)), "\n".join(sources()[:2]), 600)
    special = trained(new_bpe(byte_level()), text, 1000, special_tokens=["<|endoftext|>", "<|im_start|>"])
    special.add_tokens([AddedToken("executor", normalized=True), AddedToken("exec", normalized=False), "\n\n\n"])
    yield "added tokens", special
    llama = new_bpe(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                             byte_level(use_regex=False)]), ignore_merges=True)
    llama = trained(llama, text, 3000)
    llama.add_special_tokens(["<|begin_of_text|>"])
    llama.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 3000)])
    yield "Llama 3's kind", llama


def check_encoding(tool, texts):
    count = 0
    for name, tokenizer in variants(tool):
        some = texts + ["<|endoftext|>a<|im_start|> executor exec\n\n\n\n<|endoftext|><|begin_of_text|>"]
        if name in ("ours", "Llama 3's kind"):
            some = [*some, every_letter()]
        if name == "without a regex":
            some = [t[:2000] for t in some]  # their encoder takes quadratic time
        theirs = [tokenizer.encode(t, add_special_tokens=False).ids for t in some]
        ours = tool.encode(tokenizer, some)
        for text, a, b in zip(some, ours, theirs):
            if a != b:
                first = next((j for j, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                around = [tokenizer.id_to_token(i) for i in b[max(0, first - 3):first + 3]]
                sys.exit(f"{name}: ids differ at token {first}: {a[first:first + 5]} and {b[first:first + 5]}, "
                         f"near {around}, in {text[:60]!r}")
            count += len(a)
    return count


def check_checkpoint(worker, folder):
    text = "\n".join(sources())
    (folder / "text.txt").write_text(text)
    (folder / "job.yaml").write_text(f"""
spec:
  model: {{llama: {{layers: 1, heads: 2, width: 16, context: 16}}}}
  data: {{text: {{path: {folder}/text.txt, tokenizer: BPE, vocab_size: 1000}}}}
  training: {{steps: 1, batch_size: 2}}
  optimizer: {{adamw: {{}}}}
""")
    subprocess.run([worker, "--spec", folder / "job.yaml", "--out", folder / "out", "--threads", "1"], check=True,
                   stdout=subprocess.DEVNULL)
    (checkpoint,) = (folder / "out/checkpoints").iterdir()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    plain = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    expected = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    assert len(tokenizer) == len(plain) == 1000, (len(tokenizer), len(plain))
    for t in sources():
        ids = tokenizer(t)["input_ids"]
        assert ids == plain(t)["input_ids"] == expected.encode(t).ids, t[:60]
        assert tokenizer.decode(ids) == t, t[:60]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--worker", required=True)
    options = parser.parse_args()
    rng = random.Random(20)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tool = Tool(options.tool, folder)
        print(f"the same merges from {check_training(tool, rng)} texts")
        print(f"the same {check_encoding(tool, texts_to_encode(rng))} ids")
        check_checkpoint(options.worker, folder)
        print("a checkpoint's tokenizer loads with transformers")


if __name__ == "__main__":
    main()
