"""`lab cluster`: a small Slurm."""

from collections.abc import Mapping
from typing import Annotated

import typer

app = typer.Typer(help="A small Slurm on this machine, to submit jobs to.", no_args_is_help=True)


def _exports(variables: Mapping[str, str]) -> list[str]:
    """Return the lines that set these variables in a shell, of the PATH its first folder in front of the others."""
    values = {name: value if name != "PATH" else value.split(":")[0] + ":$PATH" for name, value in variables.items()}
    return [f"export {name}={value}" for name, value in values.items()]


@app.command("up", epilog='Example: `./lab cluster up --nodes 2 --network "1 Gbit/s"`')
def up(
    nodes: Annotated[int, typer.Option(help="how many nodes, each with an equal share of the cores")] = 2,
    network: Annotated[
        str | None, typer.Option(help="join the nodes by wires of this rate, such as '1 Gbit/s'", show_default="none")
    ] = None,
) -> None:
    """Start a Slurm whose nodes are shares of this machine, for yourself alone. It stays until `./lab cluster down`."""
    from labkit.slurm import cluster, supervisor
    from labkit.system.lease import usable_machine

    slurm = cluster.start_slurm(nodes, network=network)
    cores, address = usable_machine().usable_cores, supervisor.address()
    print(f"Slurm is up, for you alone. Nodes: {slurm.nodes}, cores of each: {slurm.cpus_per_node}.")
    if slurm.network:
        print("\n".join(filter(None, [slurm.network, slurm.warning])))
        print("Start MPI programs with srun, or with mpirun within a job.")
    if nodes > cores:
        print(f"The nodes take turns: this machine has fewer cores, {cores}.")
    if not (address.startswith("127.") or slurm.network):
        print(f"It listens on {address}, this machine's own address, and answers only those who have its key: you.")
    print("Next, in each terminal that is to use it:")
    print(*(f"  {line}" for line in _exports(slurm.variables)), sep="\n")
    print("  sinfo\nWhen done: ./lab cluster down")


@app.command("status", epilog="Example: `./lab cluster status`")
def status() -> None:
    """Show the nodes and jobs of that Slurm, and what has died. Exit code 1 when it is not up, or not whole."""
    from labkit.slurm import cluster, supervisor

    status = cluster.Cluster().status()
    if status is None:
        print("No Slurm of these labs is up. Start one: ./lab cluster up")
    elif status.broken:
        print(
            "Slurm is not whole:", *status.broken, "Start it anew: ./lab cluster down, then ./lab cluster up", sep="\n"
        )
    else:
        use = "\n".join(_exports(supervisor.variables(status.folder)))
        print("\n\n".join(filter(None, [status.nodes, status.jobs, status.network, use])))
    raise SystemExit(0 if status and not status.broken else 1)


@app.command("down", epilog="Example: `./lab cluster down`")
def down() -> None:
    """Stop that Slurm and its jobs, which get a few seconds to save."""
    from labkit.slurm import cluster

    print("Slurm and its jobs are ended." if cluster.stop_slurm() else "No Slurm of these labs was up.")
