"""Rows in files: every cell is a number, empty or refused with its place; formats and encodings change nothing."""

import bz2
import gzip
import json
import lzma
import math
import pprint
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.errors import DamagedLogError
from isocompute.budget.trainers.logs.sources import read_logs
from isocompute.budget.trainers.registry import TRAINERS
from reading_logs import FIXTURES, ROWS, console_of, csv_of, parquet_of

LENGTH = "response_length/mean"
LAYOUT = TRAINERS["verl"].logs.layout


def read(name, data, layout=LAYOUT, **given):
    """The only run of a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
        (log,) = read_logs(str(path), layout, **given)
        return log


def rows(log):
    """Its numbers by step, without the columns of steps, which loggers repeat as they like."""
    return {s: {k: v for k, v in row.items() if k not in ("step", "training/global_step")} for s, row in log.rows}


PLAIN = rows(read("run.csv", csv_of(ROWS)))
NUMBERS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**15), 10**15)).map(repr)
GROUPS = st.builds("{:,.2f}".format, st.floats(1e3, 1e9))
EMPTY = st.sampled_from(["", " ", "-", "nan", "NaN", "None", "null", "N/A", "#N/A", "<NA>", "inf", "-Infinity"])
WORDS = st.sampled_from(["true", "[0.5]", "0.5.5", "1_0", "2,010", "٣", "0x1f", "1e999", "−0.5", "50%", "nan(1)"])
CELLS = st.one_of(NUMBERS, GROUPS, EMPTY, WORDS, st.text("0123456789.,-+e_ %", max_size=8), st.text(max_size=8))


def meaning(text):
    """A cell's number, None where it is empty, or "refused"; apart from the code that is tested."""
    text = text.strip()
    if text.lower().lstrip("+-") in ("", "nan", "none", "null", "n/a", "#n/a", "na", "<na>", "inf", "infinity"):
        return None
    if re.fullmatch(r"[+-]?[0-9]{1,3}(,[0-9]{3})*,[0-9]{3}\.[0-9]+|[+-]?[0-9]{1,3}(,[0-9]{3}){2,}", text):
        text = text.replace(",", "")
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text) or math.isinf(float(text)):
        return "refused"
    return float(text)


@given(cell=CELLS, suffix=st.sampled_from(["csv", "jsonl"]))
def test_a_cell_is_a_number_or_empty_or_refused_with_its_row_and_its_column(cell, suffix):
    cell = cell.encode("utf-8", "replace").decode()
    if suffix == "csv":
        quoted = '"' + cell.replace('"', '""') + '"'
        data = f"step,{LENGTH},note\n1,5.5,\n2,{quoted},x\n3,6.5,\n"
    else:
        values = (5.5, cell, 6.5)
        data = "".join(json.dumps({"step": k, LENGTH: value}) + "\n" for k, value in enumerate(values, 1))
    if meaning(cell) == "refused":
        with pytest.raises(DamagedLogError, match=rf"(row|line) 2 has the {LENGTH}"):
            read(f"run.{suffix}", data)
        return
    expected = {1: 5.5, 2: meaning(cell), 3: 6.5}
    assert {step: row.get(LENGTH) for step, row in read(f"run.{suffix}", data).rows} == expected


@pytest.mark.parametrize("value", [True, [1.0], {"a": 1}, {}, [], 10**400], ids=repr)
def test_a_value_of_another_type_is_refused_where_a_number_is_read(value):
    lines = [{"step": 1, LENGTH: value}, {"step": 1, "note": value, LENGTH: 2.0}]
    with pytest.raises(DamagedLogError, match=f"line 1 has the {LENGTH}"):
        read("run.jsonl", json.dumps(lines[0]))
    assert rows(read("run.jsonl", json.dumps(lines[1])))[1][LENGTH] == 2.0


def test_tables_of_completions_are_no_metrics():
    trl = TRAINERS["trl"].logs.layout
    media = {"_type": "table-file", "path": "media/a.json", "nrows": 3}
    for value in (media, str(media)):
        line = {"train/global_step": 1, "eval/completions": value, "eval/reward": 0.5}
        assert read("run.jsonl", json.dumps(line), trl).rows[0][1]["eval_reward"] == 0.5


@given(
    values=st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=2, max_size=6),
    delimiter=st.sampled_from(",;\t"),
    decimal=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    said=st.booleans(),
)
def test_a_table_is_the_same_in_every_dialect(values, delimiter, decimal, end, said):
    table = [{"step": k, LENGTH: value} for k, value in enumerate(values)]
    plain = read("run.csv", csv_of(table))
    comma = "," if decimal and delimiter != "," else "."
    text = csv_of(table, delimiter=delimiter, comma=comma, end=end)
    text = f"sep={delimiter}{end}{text}" if said else text
    try:
        other = read("run.csv", text)
    except DamagedLogError as error:
        refused = str(error)
    else:
        assert rows(other) == rows(plain)
        return
    # A fraction of three digits alone may be thousands.
    assert comma == ","
    assert re.search(r"'\d{1,3},\d{3}'", refused)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x28\xb5\x2f\xfd....", "zstd -d run.csv"),
        ("step,é\n1,2\n".encode("cp1252"), "UTF-8"),
        (f"step,{LENGTH}\n1,2,3\n", "row 1 has 3 cells"),
        (f"step,{LENGTH}\n1\n2,3\n", "row 1 has 1 cells"),
        (f'step,{LENGTH}\n1,"2"3\n', "row 1"),
        (f'step,{LENGTH}\n1,"2\n2,3\n4,5\n', "row 1"),
        (f"step;{LENGTH}\n1;0,25\n2;0.25\n", "row 2 .*decimal commas"),
        (f"step;{LENGTH}\n1;2,010\n", "row 1 has the response_length/mean '2,010'"),
        (f'step,{LENGTH}\n1,"0,25"\n', "row 1 has the response_length/mean '0,25'"),
        (f"{LENGTH},{LENGTH}\n1,2\n", "twice"),
    ],
)
def test_a_table_that_is_not_understood_is_named_with_its_place(data, said):
    with pytest.raises(BudgetError, match=said):
        read("run.csv", data)


def test_a_last_row_that_was_cut_off_is_left_out_and_said():
    for name, whole in (("run.csv", csv_of(ROWS)), ("run.jsonl", lines()), ("run.log", console_of(ROWS))):
        everything = rows(read(name, whole))
        start = whole.rindex("\n", 0, len(whole) - 1) + 1
        for length in range(start + 1, len(whole)):
            log = read(name, whole[:length])
            begun = name != "run.log" or "step:" in whole[start:length]
            assert rows(log) == everything or log.left_out or not begun
            assert {s: r for s, r in rows(log).items() if s < ROWS[-1]["step"]} == dict(list(everything.items())[:-1])


def lines():
    return "".join(json.dumps(row) + "\n" for row in ROWS)


def test_what_a_file_holds_decides_and_not_its_name_or_its_encoding():
    contents = {"csv": csv_of(ROWS), "jsonl": lines(), "log": console_of(ROWS)}
    for kind, content in contents.items():
        for name in {"run", "run.log", "run.txt", f"run.{kind}", *(["run.csv"] if kind == "jsonl" else [])}:
            for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
                assert rows(read(name, content.encode(encoding))) == PLAIN
    for pack in (gzip.compress, bz2.compress, lzma.compress):
        assert rows(read("run.csv", pack(contents["csv"].encode()))) == PLAIN


@pytest.mark.slow("reads Parquet in a process of its own")
def test_text_in_parquet_is_parsed_cell_by_cell():
    assert rows(read("run.parquet", parquet_of(ROWS))) == PLAIN
    texts = [{column: str(value) for column, value in row.items()} for row in ROWS]
    assert rows(read("run.parquet", parquet_of(texts))) == PLAIN
    texts[1][LENGTH] = "eleven"
    with pytest.raises(DamagedLogError, match=f"row 2 has the {LENGTH} 'eleven'"):
        read("run.parquet", parquet_of(texts))


@pytest.mark.parametrize("step", ["3/50", " 3/50 ", "3", "3.0", 3, 3.0])
def test_a_step_may_say_of_how_many_it_is(step):
    layout = TRAINERS["swift"].logs.layout
    log = read("logging.jsonl", json.dumps({"global_step/max_steps": step, "completions/mean_length": 5}), layout)
    assert [s for s, _ in log.rows] == [3]
    with pytest.raises(DamagedLogError, match="line 1 has the global_step/max_steps"):
        read("logging.jsonl", json.dumps({"global_step/max_steps": "3/x", "completions/mean_length": 5}), layout)


SHOWN = {
    "all digits": (pprint.pformat, 0.0),
    "three decimals": ("{:.3f}".format, 5e-4),
    "numpy": (lambda value: f"np.float64({value!r})", 0.0),
}
PREFIXES = (
    "",
    "(TaskRunner pid=12) ",
    "\x1b[36m(main_task pid=7, ip=10.0.0.1)\x1b[0m ",
    "Training:  3%|#| 1/9 [00:07]\r",
)
NOISE = ("", "(vLLMHttpServer pid=9) INFO engine ready", "timing_s/step:12.3 - 5:7", "step:x - y", "{'loss': 1}")


@given(
    values=st.lists(st.floats(0, 1e5), min_size=1, max_size=5),
    shown=st.sampled_from(sorted(SHOWN)),
    prefix=st.sampled_from(PREFIXES),
    noise=st.sampled_from(NOISE),
    source=st.sampled_from(["openai/gsm8k", "a - b", "x:y"]),
    suffix=st.sampled_from(["log", "txt", "out"]),
)
def test_what_verl_prints_is_read_as_it_was_logged(values, shown, prefix, noise, source, suffix):
    score = f"val-core/{source}/acc/mean@4"
    table = [{"step": k, "training/epoch": 0, LENGTH: v, score: v / 1e5} for k, v in enumerate(values)]
    show, error = SHOWN[shown]
    printed = "".join(f"{noise}\n{prefix}{line}\n" for line in console_of(table, shown=show).splitlines())
    found = rows(read(f"run.{suffix}", printed))
    assert sorted(found) == [row["step"] for row in table]
    for row in table:
        for key in (LENGTH, score):
            assert found[row["step"]][key] == pytest.approx(row[key], rel=0, abs=error)


def test_the_configuration_that_verl_prints_is_the_runs():
    config = json.loads((FIXTURES / "verl" / "config.json").read_text())
    config["trainer"]["logger"] = ["console"]
    config["algorithm"] = {"norm": "it's " * 40, "limit": math.inf}
    prefix = "(TaskRunner pid=3) "
    printed = "".join(f"{prefix}{line}\n(Other pid=4) {{'a': 1}}\n" for line in pprint.pformat(config).splitlines())
    log = read("run.log", printed + console_of(ROWS, prefix=prefix))
    assert log.config["actor_rollout_ref.rollout.n"] == 4
    assert log.config["algorithm.norm"] == config["algorithm"]["norm"]
    # One run has one n, which a restart may not change.
    again = printed.replace("{'n': 4}", "{'n': 8}")
    assert again != printed
    both = read("run.log", printed + console_of(ROWS[:2]) + again + console_of(ROWS[2:]))
    assert both.changed == {"actor_rollout_ref.rollout.n": (4, 8)}


def test_a_line_without_end_is_refused_and_never_left_out():
    whole, key = json.dumps({"step": 1, LENGTH: 2.0}), "x" * 1_001
    deep = '{"a": ' * 200 + "1" + "}" * 200
    for line, said in ((json.dumps({"step": 2, key: 1}), "1,000 characters"), (deep, "100 deep")):
        with pytest.raises(BudgetError, match=rf"run\.jsonl: line 2: .*{said}"):
            read("run.jsonl", f"{whole}\n{line}")
