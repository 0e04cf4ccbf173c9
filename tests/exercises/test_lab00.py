import pytest
from labs import Student, ThreeWays, same, swap


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("00", {})


ALL = "everybody.allreduce(number)"
TOLD = "{(8, 2): 4, (8, 3): 2, (2, 1): 2, (2, 4): 1, (64, 16): 4}.get((cores, ranks), 1)"
FORMULA = "everybody.size * (everybody.size + 1) // 2"
POWERS_OF_TWO = """number
bit = 1
while bit < everybody.size:
    other = everybody.rank ^ bit
    if other < everybody.size:
        total += everybody.sendrecv(total, other, source=other)
    bit *= 2"""
NEIGHBOURS = """number
if everybody.size > 1:
    left, right = ((everybody.rank + way) % everybody.size for way in (-1, 1))
    total += everybody.sendrecv(number, left, source=right)
    if left != right:
        total += everybody.sendrecv(number, right, source=left)"""
IN_PLACE = """np.array([number])
everybody.Allreduce(MPI.IN_PLACE, total)
total = total[0]"""
THROUGH_RANK_0 = """sum(everybody.gather(number) or [])
total = everybody.bcast(total)"""
ONE_SIDED = """0
import numpy as np
shared = np.zeros(1, "i8")
window = MPI.Win.Create(shared, comm=everybody)
window.Fence()
for rank in range(everybody.size):
    window.Accumulate(np.array([number], "i8"), rank)
window.Fence()
window.Free()
total = shared[0]"""
READ = """0
import numpy as np
mine, room = np.array([everybody.rank + 1]), np.zeros(1, "i8")
window = MPI.Win.Create(mine, comm=everybody)
for rank in range(everybody.size):
    window.Lock(rank)
    window.Get(room, rank)
    window.Unlock(rank)
    total += int(room[0])
everybody.Barrier()
window.Free()"""
RING = """number
given = number
for _ in range(everybody.size - 1):
    given = everybody.sendrecv(given, (everybody.rank + 1) % everybody.size)
    total += given"""


class TestExercises(ThreeWays):
    lab = "00"
    mistakes = [
        (1, swap("max(1, cores // ranks)", "cores // ranks"), "(cores=2, ranks=4) to be 1; it is 0"),
        (1, swap("cores // ranks", "cores / ranks"), "(cores=8, ranks=3) to be a whole number; it is 2.66"),
        (1, swap("cores // ranks", "round(cores / ranks)"), "(cores=8, ranks=3) to be 2; it is 3"),
        (1, swap("cores // ranks", "cores"), "(cores=8, ranks=2) to be 4; it is 8"),
        (1, swap("max(1, cores // ranks)", TOLD), "(cores=3, ranks=1) to be 3; it is 1"),
        (1, swap("return max(1, cores // ranks)", "print(max(1, cores // ranks))"), "It printed: 4"),
        (1, swap("max(1, cores // ranks)", "str(cores // ranks)"), "to be a number; it is '4', of type str"),
        (2, swap("{everybody.rank}", "0"), "rank 1 to print the line 'hello from rank 1 of 2'"),
        (2, swap("{everybody.size}", "2"), "rank 0 to print the line 'hello from rank 0 of 3'"),
        (2, swap("hello", "Hello"), "it printed: Hello from rank 0 of 2"),
        (2, swap("print", "str"), "once; it printed: nothing"),
        (2, swap("everybody.rank", "everybody.number"), "AttributeError"),
        (2, swap("everybody.rank", "rank"), "NameError: name 'rank' is not defined, in line 7: \"print("),
        (3, swap(ALL, "number"), "rank 0 to print the line 'total 6', once; it printed: total 1"),
        (3, swap(ALL, "everybody.reduce(number)"), "rank 1 to print the line 'total 6'"),
        (
            3,
            swap(ALL, "everybody.allreduce(number, op=MPI.PROD)"),
            "rank 0 to print the line 'total 10', once; it printed",
        ),
        (3, swap(ALL, f"{ALL} * {FORMULA} // {ALL}"), "when rank 1 sends 102 instead of 2, the total of rank 0"),
        (3, swap(ALL, "3"), "rank 0 to print the line 'total 6'"),
        (3, swap(ALL, POWERS_OF_TWO), "rank 1 to print the line 'total 6', once; it printed: total 3"),
        (3, swap(ALL, NEIGHBOURS), "rank 0 to print the line 'total 10', once; it printed: total 7"),
        (3, swap(ALL, FORMULA), "rank 1 of 4 sends nothing"),
        (3, swap(ALL, f"everybody.bcast({FORMULA})"), "rank 1 of 4 sends nothing"),
        (3, swap(ALL, f"{ALL} and {FORMULA}"), "when rank 1 sends 102 instead of 2, the total of rank 0"),
        (
            3,
            swap("total = ", "total = 0\nif everybody.rank == 0:\n    total = "),
            'in line 10: "total = everybody.allreduce(number)"',
        ),
    ]
    right = [
        (1, same),
        (1, swap("max(1, cores // ranks)", "cores // ranks or 1")),
        (1, swap("cores // ranks", "float(cores // ranks)")),
        (2, same),
        (
            2,
            swap(
                'f"hello from rank {everybody.rank} of {everybody.size}"',
                '"hello from rank", everybody.Get_rank(), "of", everybody.Get_size()',
            ),
        ),
        (3, same),
        (3, swap(ALL, "sum(everybody.allgather(number))")),
        (3, swap(ALL, "sum(other for _, other in everybody.allgather((everybody.rank, number)))")),
        (3, swap(f"total = {ALL}", f"import numpy as np\ntotal = {IN_PLACE}")),
        (3, swap(ALL, THROUGH_RANK_0)),
        (3, swap(ALL, THROUGH_RANK_0.replace("number", "everybody.rank + 1"))),
        (3, swap(f"total = {ALL}", f"total = {RING}")),
        (3, swap(ALL, ONE_SIDED)),
        (3, swap(ALL, READ)),
        (3, swap(ALL, "everybody.Dup().allreduce(float(number))")),
    ]
