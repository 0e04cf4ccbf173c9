import pytest
from labs import Bench, ThreeWays, same, swap


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Bench("00", {})


class TestExercises(ThreeWays):
    lab = "00"
    mistakes = [
        (1, swap("max(1, cores // ranks)", "cores // ranks"), "(cores=2, ranks=4) to be 1; it is 0"),
        (1, swap("cores // ranks", "cores / ranks"), "to be a whole number; it is 4.0"),
        (1, swap("cores // ranks", "cores"), "(cores=8, ranks=2) to be 4; it is 8"),
        (2, swap("{everybody.rank}", "0"), "rank 1 to print the line 'hello from rank 1 of 2'"),
        (2, swap("{everybody.size}", "2"), "rank 0 to print the line 'hello from rank 0 of 3'"),
        (2, swap("print", "str"), "once; it printed:"),
        (2, swap("everybody.rank", "everybody.number"), "AttributeError"),
        (3, swap("everybody.allreduce(number)", "number"), "rank 0 to print the line 'total 3'"),
        (3, swap("everybody.allreduce(number)", "everybody.reduce(number)"), "rank 1 to print the line 'total 3'"),
        (3, swap("everybody.allreduce(number)", "3"), "rank 0 to print the line 'total 6'"),
    ]
    right = [
        (1, same),
        (1, swap("max(1, cores // ranks)", "cores // ranks or 1")),
        (2, same),
        (
            2,
            swap(
                'f"hello from rank {everybody.rank} of {everybody.size}"',
                '"hello from rank", everybody.Get_rank(), "of", everybody.Get_size()',
            ),
        ),
        (3, same),
        (3, swap("everybody.allreduce(number)", "sum(everybody.allgather(number))")),
    ]
