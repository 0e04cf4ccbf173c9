import inspect

import numpy as np
import pytest
from labs import Student, ThreeWays, same, swap

from labkit_author import sources


@pytest.fixture
def student(tmp_path, monkeypatch):
    """The lab up to its scripts: mlp.py from the lab, buckets.py from the solution."""
    monkeypatch.chdir(tmp_path)
    student = Student("11", {"np": np})
    (tmp_path / "work").mkdir()
    cells = sources.read(sources.find("11")).cells
    network = next(cell.source for cell in cells if cell.source.startswith("%%writefile work/mlp.py"))
    (tmp_path / "work" / "mlp.py").write_text(network.partition("\n")[2])
    (tmp_path / "work" / "buckets.py").write_text(inspect.getsource(student.answer(1, same)))
    return student


SUBMIT = "            on_the_way.append(self.sender.submit(self.average, gradients))\n"
AFTER = """\
        for bucket, averaged in zip(self.buckets, on_the_way):
            for layer, mean in zip(bucket, averaged.result()):
                self.states[layer].update(self.weights[layer], mean)
"""
UPDATE = "                self.states[layer].update(self.weights[layer], mean)\n"
ONE_BUCKET_LATER = swap(SUBMIT, "            if on_the_way:\n                on_the_way[-1].result()\n" + SUBMIT)
NOT_BLOCKING = """\
            flat = np.concatenate([gradient.ravel() for gradient in gradients])
            on_the_way.append((self.ranks.Iallreduce(MPI.IN_PLACE, flat), flat))
"""
WAITED_FOR = """\
        for bucket, (request, flat) in zip(self.buckets, on_the_way):
            request.Wait()
            for layer, mean in zip(bucket, np.split(flat / self.ranks.size, len(bucket))):
                self.states[layer].update(self.weights[layer], mean)
"""
REDUCED = "        self.ranks.Reduce_scatter_block(self.flat_gradient, mine)\n"
GATHERED = "        self.ranks.Allgather(MPI.IN_PLACE, self.flat)\n"
ALL_REDUCED = """\
        self.ranks.Allreduce(MPI.IN_PLACE, self.flat_gradient)
        first = self.ranks.rank * self.share
        mine = self.flat_gradient[first : first + self.share].copy()
"""


def states_of_all(text):
    """Return ZeRO-1 with the states of all weights on each rank."""
    head, _, rest = text.partition("        ### BEGIN SOLUTION\n")
    everything = """\
        self.ranks.Allreduce(MPI.IN_PLACE, self.flat_gradient)
        self.flat_gradient /= self.ranks.size
        self.state.update(self.flat, self.flat_gradient)
"""
    return (head + everything + rest.partition("        ### END SOLUTION\n")[2]).replace(
        "Adam(self.share)", "Adam(self.flat.size)"
    )


class TestExercises(ThreeWays):
    lab = "11"
    mistakes = [
        (1, swap("reversed(range(len(sizes)))", "range(len(sizes))"), "in the order in which gradients become ready"),
        (1, swap("<= limit", "< limit"), "to be filled: layer 1 has room in it, 4 + 3 bytes"),
        (1, swap("sum(sizes[each] for each in made[-1]) + ", ""), "to hold 7 bytes at most"),
        (1, swap("made[-1].append(layer)", "made[-1].insert(0, layer)"), "in the order in which gradients become"),
        (1, swap("made = []", "made = [[]]"), "to hold a layer; it is empty"),
        (
            1,
            swap("    return made", "    return [layer for bucket in made for layer in bucket]"),
            "to be a list of layers'",
        ),
        (1, swap("    return made", "    return"), "to be a list of lists; it is None"),
        (2, swap(SUBMIT, SUBMIT + "            on_the_way[-1].result()\n"), "waited for the mean first"),
        (
            2,
            swap(SUBMIT, "            on_the_way.append(gradients)\n"),
            "'list' object has no attribute 'result'",
        ),
        (
            2,
            swap(
                SUBMIT,
                "            on_the_way.append(gradients)\n"
                "        on_the_way = [self.sender.submit(self.average, each) for each in on_the_way]\n",
            ),
            "without having sent it",
        ),
        (2, ONE_BUCKET_LATER, "waited for a mean before the last of them"),
        (2, swap("for bucket in self.buckets:", "for bucket in self.buckets[:-1]:"), "the loss of step 2"),
        (
            2,
            swap(
                "place = self.weights[layer], outputs[layer], outputs[layer + 1]",
                "place = self.weights[layer], outputs[layer], outputs[layer]",
            ),
            "the loss of step 2",
        ),
        (2, swap("zip(bucket, averaged.result())", "zip(bucket[::-1], averaged.result())"), "the loss of step 2"),
        (
            2,
            swap("gradient, error = backward(*place, error)", "gradient, _ = backward(*place, error)"),
            "the loss of step 2",
        ),
        (
            2,
            swap(UPDATE, "                self.weights[layer] -= 1e-3 * mean.reshape(self.weights[layer].shape)\n"),
            "the loss of step 2",
        ),
        (3, swap("        mine /= self.ranks.size\n", ""), "is it the mean over the ranks, or the sum?"),
        (3, swap(GATHERED, ""), "the loss of step 2"),
        (3, states_of_all, "gradients on rank 0 to be 1,602 numbers after 4 steps; they are 4,806"),
        (3, swap("mine /= self.ranks.size", "mine /= self.share"), "to be one process's"),
        (
            3,
            swap(
                "own = slice(self.ranks.rank * self.share, (self.ranks.rank + 1) * self.share)",
                "own = slice(0, self.share)",
            ),
            "the loss of step 2",
        ),
        (3, swap("        mine = np.empty(self.share, np.float32)\n" + REDUCED, ALL_REDUCED), "to send 25,632 bytes"),
        (4, swap("return mine / self.ranks.size", "return mine"), "They are 3 times too large"),
        (4, swap("return mine / self.ranks.size", "return mine"), "how does a sum become a mean?"),
        (
            4,
            swap("[: math.prod(shape)].reshape(shape)", ""),
            "gather(0) on rank 0 to be an array of the shape (31, 31)",
        ),
        (
            4,
            swap("        whole = np.empty", "        whole = self.whole = np.empty"),
            "Is a whole layer kept somewhere",
        ),
        (
            4,
            swap(
                "        self.ranks.Allgather(share, whole)\n", "        whole[:] = np.tile(share, self.ranks.size)\n"
            ),
            "the right numbers from gather(0)",
        ),
        (
            4,
            swap("self.ranks.Reduce_scatter_block(parts, mine)", "mine[:] = parts[self.ranks.rank] * self.ranks.size"),
            "the right numbers from scatter",
        ),
        (4, swap("return whole[: math.prod(shape)].reshape(shape)", "return None"), "None: does it return?"),
        (
            4,
            swap("return mine / self.ranks.size", "return mine / self.ranks.size if self.ranks.rank == 0 else None"),
            "on rank 1",
        ),
        (5, swap("* 8 / rate", "/ rate"), "the seconds of choose("),
        (5, swap("<= memory", "< memory"), "to choose 'DDP'"),
        (5, swap("8 + 8 / n", "4 + 12 / n"), "to choose"),
        (5, swap("max(seconds, sending)", "seconds + sending"), "the seconds of choose("),
        (5, swap("16 / n, 3", "16 / n, 2"), "the seconds of choose("),
        (5, swap("    return None", '    return "none"'), "to be None, as no way fits"),
        (5, swap("return way, max(seconds, sending)", "return way"), "to be a pair"),
    ]
    right = [
        (1, same),
        (
            1,
            swap(
                "    made = []\n",
                "    made, left = [], 0\n    for layer in range(len(sizes) - 1, -1, -1):\n"
                "        if not made or sizes[layer] > left:\n            made.append(())\n            left = limit\n"
                "        made[-1] += (layer,)\n        left -= sizes[layer]\n    return made\n",
            ),
        ),
        (2, same),
        (2, lambda text: swap(AFTER, WAITED_FOR)(swap(SUBMIT, NOT_BLOCKING)(text))),
        (2, swap("zip(self.buckets, on_the_way)", "list(zip(self.buckets, on_the_way))[::-1]")),
        (3, same),
        (
            3,
            swap(
                "        mine = np.empty(self.share, np.float32)\n" + REDUCED,
                "        self.ranks.Reduce_scatter_block(MPI.IN_PLACE, self.flat_gradient)\n"
                "        mine = self.flat_gradient[: self.share]\n",
            ),
        ),
        (3, swap(GATHERED, "        self.ranks.Allgather(self.flat[own].copy(), self.flat)\n")),
        (4, same),
        (
            4,
            lambda text: swap(
                "self.ranks.Reduce_scatter_block(parts, mine)",
                "self.ranks.Reduce_scatter(parts.ravel(), mine, [mine.size] * self.ranks.size)",
            )(
                swap(
                    "        self.ranks.Allgather(share, whole)\n",
                    "        whole = np.concatenate(self.ranks.allgather(share))\n",
                )(text)
            ),
        ),
        (5, same),
        (
            5,
            swap(
                "    n = ranks\n",
                "    n, p = ranks, parameters\n    fits = {'DDP': 16, 'ZeRO-1': 8 + 8 / n, 'FSDP': 16 / n}\n"
                "    ways = [way for way in fits if p * fits[way] <= memory]\n    if not ways:\n        return None\n"
                "    passes = 3 if ways[0] == 'FSDP' else 2\n    sent = passes * 32 * p * (n - 1) / n\n"
                "    return [ways[0], max(seconds, sent / rate)]\n",
            ),
        ),
    ]
    slow = {2, 3, 4}
