#!/usr/bin/env python3
"""Fathom's tokenizer beside the Hugging Face `tokenizers` library, on the same texts, one core each, in one run.

  python3 -m venv /tmp/v && /tmp/v/bin/pip install tokenizers
  cmake --build --preset release --target fathom_text_bench
  /tmp/v/bin/python tools/bench_tokenizer.py DIR FILE...       DIR: a folder with tokenizer.json; FILE: UTF-8 text

Speeds are MB (10^6 bytes) of text per second of CPU time, the best of several passes. The ids of both must be equal.
"""
import json
import os
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402  (the variables above must be set first)

BENCH = os.path.join(os.path.dirname(__file__), "../build/release/bin/fathom_text_bench")


def reference(tokenizer, text):
    # In chunks of lines as a user of the library would: it is quickest there, and one call on megabytes is not.
    lines, chunk, size = [], [], 0
    for line in text.splitlines(keepends=True):
        chunk.append(line)
        size += len(line)
        if size > 4096:
            lines.append("".join(chunk))
            chunk, size = [], 0
    lines.append("".join(chunk))
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        for part in lines:
            tokenizer.encode(part, add_special_tokens=False)
        best = min(best, time.process_time() - start)
    return best


def main():
    folder, files = sys.argv[1], sys.argv[2:]
    start = time.process_time()
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    print(f"load: tokenizers {tokenizers.__version__} {1e3 * (time.process_time() - start):.0f} ms, ", end="")
    rows = [json.loads(line) for line in subprocess.check_output([BENCH, folder, *files], text=True).splitlines()]
    print(f"fathom {rows[0]['load_ms']} ms")
    print(f"parser, {rows[1]['parser']}: {rows[1]['mb_s']} MB/s, {rows[1]['tokens_s']} tokens/s")
    for path, row in zip(files, rows[2:]):
        text = open(path, encoding="utf-8", newline="").read()
        seconds = reference(tokenizer, text)
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        theirs = row["mb"] / seconds
        same = "same number of ids" if len(whole) == row["special_tokens"] else "DIFFERENT NUMBER OF IDS"
        print(f"{path}: {row['mb']} MB, fathom {row['special_mb_s']} MB/s (plain {row['mb_s']}), "
              f"tokenizers {theirs:.1f} MB/s, ratio {row['special_mb_s'] / theirs:.1f}, {same}")


main()
