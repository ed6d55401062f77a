"""The mutants, whose session runs every week."""

from tools.mutants import MUTANTS, ROOT


def test_each_mutant_quotes_a_text_that_stands_once_and_names_a_file_of_tests() -> None:
    packages = {mutant.package: ROOT / "packages" / mutant.package for mutant in MUTANTS}
    sources = {name: [path.read_text() for path in (home / "src").rglob("*.py")] for name, home in packages.items()}
    for mutant in MUTANTS:
        assert sum(text.count(mutant.old) for text in sources[mutant.package]) == 1, mutant
        assert list((packages[mutant.package] / "tests").rglob(mutant.file)), mutant
