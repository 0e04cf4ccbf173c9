"""`lab cluster`: a small Slurm cluster on this machine."""

from collections.abc import Mapping
from typing import Annotated

import typer

app = typer.Typer(help="Run a small Slurm cluster on this machine.", no_args_is_help=True)


def _exports(variables: Mapping[str, str]) -> list[str]:
    """Return the shell lines that set these variables; for PATH, they prepend its first folder."""
    values = {name: value if name != "PATH" else value.split(":")[0] + ":$PATH" for name, value in variables.items()}
    return [f"export {name}={value}" for name, value in values.items()]


@app.command("up", epilog='Example: `./lab cluster up --nodes 2 --network "1 Gbit/s"`')
def up(
    nodes: Annotated[int, typer.Option(help="Number of nodes, each with an equal share of the cores.")] = 2,
    network: Annotated[
        str | None,
        typer.Option(help="Connect the nodes with wires of this rate, such as '1 Gbit/s'.", show_default="none"),
    ] = None,
) -> None:
    """Start a Slurm cluster for you alone, with shares of this machine as nodes. It runs until `./lab cluster down`."""
    from labkit.slurm import cluster, supervisor
    from labkit.system.cores import usable_machine

    slurm = cluster.start_slurm(nodes, network=network)
    cores, address = usable_machine().usable_cores, supervisor.address()
    print(f"Slurm is up; only you can use it. Nodes: {slurm.nodes}, cores per node: {slurm.cpus_per_node}.")
    if slurm.network:
        print(slurm.network)
        print("Start MPI programs with srun, or with mpirun inside a job.")
    if nodes > cores:
        print(f"The nodes share cores: this machine has only {cores}.")
    if not (address.startswith("127.") or slurm.network):
        print(f"It listens on {address}, this machine's own address, and accepts only your key.")
    print("Next, in each terminal where you want to use it:")
    print(*(f"  {line}" for line in _exports(slurm.variables)), sep="\n")
    print("  sinfo\nWhen done: ./lab cluster down")


@app.command("status", epilog="Example: `./lab cluster status`")
def status() -> None:
    """Show the cluster's nodes and jobs, and any part that has died. Exit code 1 if it is down or broken."""
    from labkit.slurm import cluster, supervisor
    from labkit.system import processes

    small = cluster.Cluster()
    if slurm := small.slurm():
        environ = {"PATH": processes.search_path(), **slurm.variables}
        answers = [supervisor.query(name, environ=environ) or "no answer" for name in ("sinfo", "squeue")]
        use = "\n".join(_exports(slurm.variables))
        print("\n\n".join(filter(None, [*answers, slurm.network, use])))
    elif broken := small.broken():
        print("Slurm is broken:", *broken, "Restart it: ./lab cluster down, then ./lab cluster up", sep="\n")
    else:
        print("The labs' Slurm is not running. Start it: ./lab cluster up")
    raise SystemExit(0 if slurm else 1)


@app.command("down", epilog="Example: `./lab cluster down`")
def down() -> None:
    """Stop the cluster and its jobs, which get a few seconds to save their work."""
    from labkit.slurm import cluster

    print("Slurm and its jobs have stopped." if cluster.Cluster().down() else "The labs' Slurm was not running.")
