import gc

from labkit.system.imports import uncollected


def test_what_is_imported_is_not_collected_and_what_comes_later_is():
    before = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
