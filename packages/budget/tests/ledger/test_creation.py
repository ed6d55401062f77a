"""A ledger's first moment: it is not there, or it is whole."""

import os
from pathlib import Path

import pytest
from isocompute.budget import Counts, History, Ledger, LedgerError
from isocompute.budget.cli import main
from isocompute.budget.ledger import frames

STEP = {"trained": Counts(rollouts=32)}


def test_an_empty_file_is_not_a_new_ledger(tmp_path, capsys):
    path = tmp_path / "a.ledger"
    path.touch()
    said = "is empty, which a ledger never is: what it held is gone; restore it from a copy, or remove it"
    with pytest.raises(LedgerError, match=said):
        Ledger.open(path, run_id="run")
    with pytest.raises(LedgerError, match=said):
        History.read(path)
    assert main(["show", str(path)]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]
    assert not path.stat().st_size


def test_a_file_that_is_not_a_regular_one_is_refused_and_stays(tmp_path):
    path = tmp_path / "a.ledger"
    os.mkfifo(path)
    with pytest.raises(LedgerError, match=r"a\.ledger: .*special file"):
        Ledger.open(path, run_id="run")
    assert path.is_fifo()


class Dies(BaseException):
    """The process dies here."""


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "hardlink_to"), (os, "ftruncate"), (os, "pwrite")])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_ledger_that_dies_in_its_creation_is_not_there_or_whole(tmp_path, monkeypatch, owner, name, moment):
    path = tmp_path / "a.ledger"
    real = getattr(owner, name)

    def die(*arguments):
        if moment == "after":
            real(*arguments)
        raise Dies

    with monkeypatch.context() as dying:
        dying.setattr(owner, name, die)
        # The dead remove nothing.
        dying.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(Dies):
            Ledger.open(path, run_id="run")
    if path.exists():
        assert path.stat().st_size >= frames.HEAD_BYTES
        assert not History.read(path).totals().paid
    with Ledger.open(path, run_id="run") as ledger:
        ledger.charge(1, STEP)
    assert History.read(path).totals().used.rollouts == 32


def test_of_two_who_create_a_ledger_at_once_one_has_it(tmp_path, monkeypatch):
    path, real = tmp_path / "a.ledger", Path.hardlink_to
    first = []

    def second(*arguments):
        monkeypatch.undo()
        first.append(Ledger.open(path, run_id="run"))
        real(*arguments)

    monkeypatch.setattr(Path, "hardlink_to", second)
    with pytest.raises(LedgerError, match="another writer"):
        Ledger.open(path, run_id="run")
    first[0].charge(1, STEP)
    first[0].close()
    assert History.read(path).totals().used.rollouts == 32
    assert list(tmp_path.iterdir()) == [path]
