"""Commands for measuring: benchmark, roofline, tuning, testbed."""

import functools
import json
import math
import os
from typing import Annotated

import typer

from labkit.bench.config import BenchConfig
from labkit.system import files, flags, terminal
from labkit.system.errors import LabError
from labkit.tune.config import TuneConfig

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel="Measuring")


@command(
    epilog="Example: `./lab bench --model=resnet50 --config eigen,onednn,onednn-threads-bf16,torch-threads-bf16`. "
    "A configuration is `eigen` (TensorFlow without oneDNN), `onednn` (TensorFlow as pip installs it) or `torch` "
    "(PyTorch), with any of these suffixes in this order: `-compile` (torch), `-threads` (one per core, one operation "
    "at a time), `-intel` (torch, with Intel's OpenMP), `-sleep` (torch; waiting threads sleep) and `-bf16`."
)
@flags.takes(BenchConfig)
def bench(config: BenchConfig) -> None:
    """Measure the images per second that a network trains on, on these cores.

    Write flags as `--name=value` or `--name value`.
    """
    if not config.config:
        from labkit.bench.__main__ import measure

        measure(config)
        return
    from labkit.bench import configurations

    steps = math.ceil(config.num_batches / config.rounds)
    shared = config.as_flags(without=("num_batches", "json"))
    names = config.config.split(",")
    comparison = configurations.compare(names, *shared, f"--num_batches={steps}", rounds=config.rounds)
    if config.json:
        files.write(config.json, json.dumps(comparison.as_dict(), indent=1))
    terminal.console().print("", configurations.table(comparison), sep="\n")
    raise SystemExit(1 if comparison.skipped else 0)


@command(epilog="Example: `./lab roofline --again`")
def roofline(
    again: Annotated[
        bool, typer.Option("--again", help="Measure again. By default, each machine is measured once.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, for programs.")] = False,
) -> None:
    """Measure this machine's limits: matmuls in 32, 16 and 8 bits, and memory bandwidth.

    Each machine is measured once; --again repeats it. Results are stored in this checkout's `.lab/`, or in
    `~/.local/state/labkit/` if the checkout is not yours.
    """
    from labkit.roofline import measure

    limits = measure.limits(again)
    print(json.dumps(limits.as_dict(), indent=2)) if as_json else measure.render(limits, terminal.console())


@command(epilog="Example: `./lab tune --minutes 20 --metric 'speed: (.*)' -- python train.py`")
@flags.takes(TuneConfig)
def tune(
    config: TuneConfig,
    argv: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="The command to tune.", show_default="lab bench")
    ] = None,
) -> None:
    """Find the fastest settings for a command: threads, memory, or anything else in a knobs file.

    Options before `--` are for lab tune; the rest is the command to tune. The search starts with the default settings,
    then tries those proposed by a model of the trials so far. At the end, the default and the best trials are measured
    again, alternately, and the settings with the largest lower bound are exported. After Ctrl-C, the same command
    resumes the search.
    """
    from labkit.tune import run

    try:
        run.tune(argv or [], config, terminal.console())
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@command(
    "testbed",
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
    epilog='Example: `./lab testbed --nodes 4 --rate "1 Gbit/s" -- mpirun -n 4 python ring.py`; in two racks: '
    '`./lab testbed --nodes 4 --racks 2 --uplink "500 Mbit/s" -- mpirun -n 4 python ring.py`',
)
def run_on_testbed(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(help="Number of nodes, each with an equal share of the cores.")] = 2,
    rate: Annotated[str, typer.Option(help="Rate of each wire, such as '100 Mbit/s'.")] = "1 Gbit/s",
    racks: Annotated[int, typer.Option(help="Number of racks to spread the nodes over, each with a switch.")] = 1,
    uplink: Annotated[
        str | None, typer.Option(help="Rate of the wire from each rack's switch to the core switch.")
    ] = None,
    wire: Annotated[
        list[str] | None, typer.Option(help="Another rate for one node's wire, such as '3=50 Mbit/s'. Repeatable.")
    ] = None,
    queue: Annotated[int | None, typer.Option(help="Bytes that a switch can queue for a node's wire.")] = None,
) -> None:
    """Run an MPI command on nodes joined by wires, all on this machine; `shell` opens a shell there.

    `mpirun` places ranks on the nodes round-robin; `-ppn 2` places two on each. When the command ends, so do the nodes,
    and its exit code is returned. In the shell, `ip -s link` shows the traffic on all wires: `port3` is the switch's
    end of node 3's wire, `up1` rack 1's end of its uplink, and `down1` the core switch's end.
    """
    from labkit.testbed import Testbed, command

    if not context.args:
        raise LabError("give a command after --, such as mpirun -n 2 python ring.py, or `shell` for a shell.")
    argv = [os.environ.get("SHELL", "bash")] if context.args == ["shell"] else context.args
    others: dict[int, float | str] = {}
    for text in wire or ():
        node, separator, other = text.partition("=")
        if not (separator and node.strip().isdecimal()):
            raise LabError(f"--wire must be like '3=50 Mbit/s', a node and the rate of its wire, not {text!r}.")
        others[int(node)] = other
    with Testbed(nodes, rate, racks=racks, uplink=uplink, wires=others, queue=queue) as wires:
        print(wires, flush=True)
        status = command.run(wires, argv)
    raise SystemExit(status)
