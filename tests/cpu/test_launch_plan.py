"""Launch plans: what the op library reads in the text that optimizer.launch writes, and that no bytes can hurt it."""

from __future__ import annotations

import random
import secrets
import struct
import subprocess

import pytest

from image_bytes import CUBIN, PTX, container, elf
from matmul_pools import h200_pool
from oplib import build, library
from tilewright.optimizer.launch import (
    NULL,
    SMS,
    Arg,
    Launch,
    LaunchPlan,
    Output,
    arg_i32,
    arg_in,
    arg_out,
    arg_scratch,
    ceildiv,
    const,
    dim,
    expr,
    minimum,
)

DIGEST = "ab" * 32
N, C, H, W = (dim(0, axis) for axis in range(4))
PLAN = LaunchPlan(
    outputs=(Output("f16", (N, (H + 1) // 2, (W + 1) // 2, const(64))), Output("f32", ())),
    scratch=(N * 1000, const(0), N * C),
    images=(DIGEST,),
    launches=(
        Launch(
            0,
            "conv_k3s2",
            (ceildiv(N * H * W, 128), const(1), N),
            256,
            const(98304),
            (arg_in(0), arg_out(0, N * 2), arg_i32(H), arg_scratch(2, 16), arg_i32(-3), Arg("f32", number=0.25), NULL, Arg("i64", offset=N * 2**33)),
            pdl=True,
        ),
        Launch(0, "reduce", (minimum(SMS, N), const(1), const(1)), 32, const(0), (arg_i32(1),), when=N.compare(">", 4)),
    ),
)


def args_of(line: str) -> bytes:
    return bytes.fromhex(line.split(" args ")[1])


def test_a_plan_is_evaluated_as_written():
    output, scalar, scratch, conv, reduce = library().run_plan(PLAN.to_text(), [[2, 3, 224, 225], [64, 3, 3, 3]], sms=132)
    assert output == "output f16 2 112 113 64"
    assert scalar == "output f32"
    assert scratch == f"scratch {2048 + 0 + 256}"  # each slot on 256 bytes
    assert conv.startswith(f"launch 0 conv_k3s2 grid {-(-2 * 224 * 225 // 128)} 1 2 block 256 smem 98304 pdl 1 args ")
    # NOTE: '@' is native alignment, so this is the layout of the C struct {ptr, ptr, int, ptr, int, float, ptr, long}.
    assert args_of(conv) == struct.pack("@QQiQifQq", 1 << 60, (2 << 60) + 4, 224, (3 << 60) + 2048 + 16, -3, 0.25, 0, 2**34)
    assert reduce == "launch 0 reduce skipped"


def test_other_dims_other_launches():
    lines = library().run_plan(PLAN.to_text(), [[9, 1, 2, 2], [1]], sms=4)
    assert lines[0] == "output f16 9 1 1 64"
    assert lines[-1] == "launch 0 reduce grid 4 1 1 block 32 smem 0 pdl 0 args 01000000"


def test_empty_batch_launches_nothing():
    lines = library().run_plan(PLAN.to_text(), [[0, 3, 8, 8], [1]])
    assert lines == ["output f16 0 4 4 64", "output f32", "scratch 0", "launch 0 conv_k3s2 skipped", "launch 0 reduce skipped"]


HEAD = f"tilewright 1\noutput f16 i0.0\nscratch 64\nimage {DIGEST}\nlaunch 0 k 128 0 1 1 1\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: 'tilewright 1' expected"),
        ("tilewright 2\n", "line 1: 'tilewright 1' expected"),
        ("tilewright 1\n\n", "line 2: unknown statement ''"),
        ("tilewright 1\nfoo\n", "line 2: unknown statement 'foo'"),
        ("tilewright 1\noutput\n", "line 2: an output has a dtype"),
        ("tilewright 1\noutput f17 1\n", "line 2: unknown dtype 'f17'"),
        ("tilewright 1\noutput f16" + " 1" * 17 + "\n", "at most 16 dims"),
        ("tilewright 1\noutput f16  1\n", "line 2: launch expression '': it ends too early"),
        ("tilewright 1\nscratch\n", "'scratch' takes 1 values, not 0"),
        ("tilewright 1\nscratch 1+\n", "line 2: launch expression '1+': it ends too early"),
        ("tilewright 1\nimage abc\n", "64 hexadecimal digits"),
        ("tilewright 1\nimage " + "AB" * 32 + "\n", "64 hexadecimal digits"),
        ("tilewright 1\npdl\n", "'pdl' before the first launch"),
        ("tilewright 1\nlaunch 0 k 128 0 1 1 1\n", "'0' is no image index (there are 0)"),
        (HEAD + "launch 1 k 128 0 1 1 1\n", "line 6: '1' is no image index (there are 1)"),
        (HEAD + "launch -1 k 128 0 1 1 1\n", "'-1' is no image index"),
        (HEAD + "launch 0 k 0 0 1 1 1\n", "at least one thread"),
        (HEAD + "launch 0 k 1025 0 1 1 1\n", "'1025' is no block size"),
        (HEAD + "launch 0 k 128 0 1 1\n", "'launch' takes 7 values, not 6"),
        (HEAD + "launch 0 k\x01 128 0 1 1 1\n", "printable"),
        (HEAD + "launch 0  128 0 1 1 1\n", "a kernel name is 1 to 4096 printable characters"),
        (HEAD + "when\n", "'when' takes 1 values, not 0"),
        (HEAD + "when 1\nwhen 1\n", "line 7: a second 'when'"),
        (HEAD + "pdl\npdl\n", "a second 'pdl'"),
        (HEAD + "arg\n", "an argument has a kind"),
        (HEAD + "arg ptr 0\n", "unknown argument kind 'ptr'"),
        (HEAD + "arg in 0\n", "'arg' takes 3 values, not 2"),
        (HEAD + "arg in 10000 0\n", "'10000' is no input"),
        (HEAD + "arg out 1 0\n", "'1' is no output (there are 1)"),
        (HEAD + "arg ws 1 0\n", "'1' is no scratch slot"),
        (HEAD + "arg in 0x 0\n", "'0x' is no input"),
        (HEAD + "arg i32 99999999999999999999\n", "a number above"),
        (HEAD + "arg f32 abc\n", "'abc' is no number"),
        (HEAD + "arg f32 1e39\n", "does not fit in 32 bits"),
        (HEAD + "arg f32 1e999\n", "is no number"),
        (HEAD + "arg null 0\n", "'arg' takes 1 values, not 2"),
        (HEAD + "arg i64 0\n" * 513, "more than 4096 bytes of arguments"),
        ("tilewright 1\n" + "scratch 1\n" * 1025, "line 1026: more than 1024 of 'scratch'"),
        ("tilewright 1\n" + f"scratch {'+'.join(f'i{i}.0' for i in range(257))}\n", "more than 256 different dims"),
        ("x" * (1 << 20) + "y", "at most 1048576 are allowed"),
    ],
)
def test_refused_plans(text, reason):
    assert reason in library().check_plan(text)


def test_accepted_plans():
    for tail in ("", "arg f32 inf\n", "arg f32 -1.5e-05\n", "arg f32 nan\n", "arg null\n", "arg i64 0\n" * 512, "when i0.0\npdl\n"):
        assert library().check_plan(HEAD + tail) == ""
    assert library().check_plan("tilewright 1") == ""  # the last line needs no end


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("output f16 i0.0-5", "line 2: a dim of an output is negative"),
        ("output f16 1//(i0.0-2)", "line 2: division by zero"),
        ("output f16 i0.1", "no such dim"),
        ("scratch i0.0-5", "line 2: the size of a scratch slot is negative or absurd"),
        (f"scratch {2**62}", "absurd"),
        (f"image {DIGEST}\nlaunch 0 k 1 0 0-1 1 1", "line 3: a grid dim is outside"),
        (f"image {DIGEST}\nlaunch 0 k 1 0 1 65536 1", "a grid dim is outside"),
        (f"image {DIGEST}\nlaunch 0 k 1 0 {2**31} 1 1", "a grid dim is outside"),
        (f"image {DIGEST}\nlaunch 0 k 1 {2**31} 1 1 1", "the shared memory size"),
        (f"image {DIGEST}\nlaunch 0 k 1 0 1 1 1\nwhen 1%(i0.0-2)", "line 3: division by zero"),
        (f"image {DIGEST}\nlaunch 0 k 1 0 1 1 1\narg i32 {2**31}", "line 4: an integer argument does not fit in 32 bits"),
        (f"image {DIGEST}\nlaunch 0 k 1 0 1 1 1\narg in 0 i0.0-3", "line 4: the offset of a pointer is negative"),
        (f"image {DIGEST}\nlaunch 0 k 1 0 1 1 1\narg i64 {2**62}*i0.0", "line 4: 64-bit overflow"),
    ],
)
def test_errors_of_a_run_name_the_line(statement, reason):
    lines = library().run_plan(f"tilewright 1\n{statement}\n", [[2]])
    assert len(lines) == 1 and reason in lines[0]


def test_a_launch_of_random_args_is_packed_like_a_struct():
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(200):
        args, layout, values = [], "@", []
        for _ in range(rng.randint(1, 20)):
            kind, number = rng.choice(["i32", "i64", "f32", "null", "in"]), rng.randrange(2**31)
            args.append(Arg(kind, offset=expr(number), number=number / 4))
            layout += {"i32": "i", "i64": "q", "f32": "f", "null": "Q", "in": "Q"}[kind]
            values.append({"f32": number / 4, "null": 0, "in": (1 << 60) + number}.get(kind, number))
        plan = LaunchPlan((), (), (DIGEST,), (Launch(0, "k", (const(1),) * 3, 32, const(0), tuple(args)),))
        assert args_of(library().run_plan(plan.to_text(), [])[1]) == struct.pack(layout, *values)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """``data`` with a few bytes changed, cut, doubled or moved."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(out) + 1), rng.randint(0, 12)
        kind = rng.randrange(5)
        if kind == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif kind == 1:
            del out[at : at + size]
        elif kind == 2:
            out[at:at] = out[at : at + size]
        elif kind == 3:
            out[at:at] = bytes(rng.choice(b"0123456789.i+-*/%<>=!(), \nsmk") for _ in range(size))
        else:
            out = out[:at]
    return bytes(out)


def test_parsers_survive_any_bytes(tmp_path):
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    plan, image = PLAN.to_text().encode(), container((CUBIN, 90, 1, elf()), (CUBIN, 80, 0, elf()), (PTX, 80, 0, b".version 9.0\0"))
    expression = b"min(ceildiv(i0.0*(i0.2+2*1-3),select(sms>4,128,64)),-i1.3%7)"
    pool = h200_pool().to_text().encode()
    cases = [(b"p", plan), (b"i", image), (b"e", expression), (b"m", pool)]
    for _ in range(300):
        cases += [(b"m", mutated(rng, pool)), (b"m", rng.randbytes(rng.randint(0, 300)))]
    for _ in range(4000):
        cases += [(b"p", mutated(rng, plan)), (b"i", mutated(rng, image)), (b"e", mutated(rng, expression))]
        cases += [(kind, rng.randbytes(rng.randint(0, 300))) for kind in (b"p", b"i", b"e")]
    cases += [(b"p", b"tilewright 1\n" + b" " * 100_000), (b"p", b"\n" * (1 << 20)), (b"e", b"(" * 4096), (b"e", b"-" * 4096)]
    cases += [(b"i", b"TWIMG001" + b"\xff" * 4000)]
    file = tmp_path / "cases"
    file.write_bytes(b"".join(kind + struct.pack("<I", len(data)) + data for kind, data in cases))
    done = subprocess.run([build() / "fuzz_parsers", file], capture_output=True, text=True)
    assert done.returncode == 0, (seed, done.stderr[-3000:])
    accepted, refused = (int(word) for word in done.stdout.split()[::2][:2])
    assert accepted + refused == len(cases) and accepted > 100 and refused > len(cases) // 2
