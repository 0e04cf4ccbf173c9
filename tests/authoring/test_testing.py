from labkit.authoring import testing
from labkit.exercises import sources


def test_a_labs_tests_are_its_exercises_its_source_and_both_its_notebooks():
    for source in sources.labs():
        chosen = testing.selection(lab=source.stem[:2])
        assert any(path.startswith(f"tests/exercises/test_lab{source.stem[:2]}") for path in chosen)
        assert f"solutions/{source.stem}.ipynb" in chosen
        assert not any(other.stem in " ".join(chosen) for other in sources.labs() if other != source)


def test_fast_tests_start_no_notebook():
    assert not any("solutions" in argument for argument in testing.selection(fast=True))
    assert not any("solutions" in argument for argument in testing.selection(fast=True, lab="09"))
    assert testing.selection() == []


def test_the_whole_suite_is_two_runs_which_share_all_tests_between_them():
    beside, alone = testing.whole_suite()
    assert ("-mnot alone" in beside, "-malone" in alone) == (True, True)
    assert not any(argument.startswith("-n") for argument in alone)
