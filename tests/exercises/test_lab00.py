import pytest
from labs import Student, ThreeWays, after, same, swap

from labkit.exercises.lab00 import FORMULA_HINT, MORE_RANKS_HINT


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
OWN = "everybody.rank + 1"  # whoever has no use for `number`
SPLIT = f"everybody.Split(0).allreduce({OWN})"
BOTH_WAYS = f"""{OWN} + (everybody.exscan({OWN}) or 0)
total += everybody.Split(0, key=-everybody.rank).exscan({OWN}) or 0"""
PERSISTENT = """np.array([MPI.COMM_WORLD.rank + 1]), np.zeros(1, "i8")
total = int(mine[0])
for rank in set(range(MPI.COMM_WORLD.size)) - {MPI.COMM_WORLD.rank}:
    both = [MPI.COMM_WORLD.Send_init(mine, rank), MPI.COMM_WORLD.Recv_init(room, rank)]
    MPI.Prequest.Startall(both)
    MPI.Prequest.Waitall(both)
    total += int(room[0])"""
NO_WAIT = f"""np.zeros(everybody.size, "i8")
everybody.Iallgatherv(np.array([{OWN}]), total).Wait()
total = total.sum()"""
PIECES = f"""np.zeros(1, "i8")
everybody.Reduce_scatter(np.full(everybody.size, {OWN}), total)
total = total[0]"""
SCRIPT = "from mpi4py import MPI"
CARTESIAN = """
ring = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.size], periods=[True])
left, right = ring.Shift(0, 1)
total = given = ring.rank + 1
for _ in range(ring.size - 1):
    given = ring.sendrecv(given, right, source=left)
    total += given
print("total", total)
"""
LARGEST = """everybody.allreduce(number, op=MPI.MAX)
total = total * (total + 1) // 2"""
COUNT = """everybody.allreduce(1)
total = total * (total + 1) // 2"""
LINE = "total = everybody.allreduce(number)"
DEALT = """import numpy as np
mine, size = np.zeros(1, "i8"), everybody.size
everybody.Scatterv(None if everybody.rank else np.full(size, size * (size + 1) // 2), mine)
total = mine[0]"""
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
        (3, swap(ALL, f"{ALL} * {FORMULA} // {ALL}"), "rank 1 of 4 sends are 100 larger, rank 0 prints 'total 10'"),
        (3, swap(ALL, "3"), "rank 0 to print the line 'total 6'"),
        (3, swap(ALL, POWERS_OF_TWO), "rank 1 to print the line 'total 6', once; it printed: total 3"),
        (3, swap(ALL, NEIGHBOURS), "rank 0 to print the line 'total 10', once; it printed: total 7"),
        (3, swap(ALL, FORMULA), "rank 1 of 4 sends nothing"),
        (3, swap(ALL, f"everybody.bcast({FORMULA})"), "rank 1 of 4 sends nothing"),
        (3, swap(LINE, DEALT), "rank 1 of 4 sends nothing"),
        (3, swap(ALL, f"{ALL} and {FORMULA}"), "rank 1 of 4 sends are 100 larger, rank 0 prints 'total 10'"),
        (3, swap(ALL, LARGEST), "rank 0 prints 'total 5253': not 'total 110', nor 10 plus another multiple of 100"),
        (3, swap(ALL, COUNT), "rank 0 prints 'total 5460': not 'total 110'"),
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
        (3, swap(ALL, f"-everybody.allreduce(-({OWN}))")),
        (3, swap(ALL, SPLIT)),
        (3, swap(ALL, BOTH_WAYS)),
        (3, after(SCRIPT, CARTESIAN)),
        (3, after(SCRIPT, f'import numpy as np\nmine, room = {PERSISTENT}\nprint("total", total)\n')),
        (3, swap(f"total = {ALL}", f"import numpy as np\nmine, room = {PERSISTENT}")),
        (3, swap(f"total = {ALL}", f"import numpy as np\ntotal = {NO_WAIT}")),
        (3, swap(f"total = {ALL}", f"import numpy as np\ntotal = {PIECES}")),
    ]


@pytest.mark.parametrize(
    ("exercise", "edit", "hint"),
    [
        (1, swap("max(1, cores // ranks)", "cores // ranks"), MORE_RANKS_HINT),
        (3, swap(ALL, LARGEST), FORMULA_HINT),
    ],
)
def test_a_mistake_gets_the_hint_that_fits(student, exercise, edit, hint, capsys):
    student.check(exercise, student.answer(exercise, edit))
    assert f"Hint: {hint}" in capsys.readouterr().out
