"""Which point of a space gives the best figure, when only few can be tried?

Optuna's tree-structured Parzen estimator (TPE) proposes what to try next: Bergstra et al. 2011, "Algorithms for
Hyper-Parameter Optimization"; several knobs together: Falkner et al. 2018, arXiv 1807.01774.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.pruners import ThresholdPruner
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from labkit.system import load
from labkit.system.errors import LabError

optuna.logging.set_verbosity(optuna.logging.WARNING)  # it tells of every trial, and so do we

STARTUP = 5  # random trials before TPE; 3 to 10 did equally well on ten made-up landscapes, with 5% of each tried
PROPOSALS = 10  # that may be points tried already, before a random one is taken
HOPELESS = 0.2  # a trial that far behind the best, as a share of it, is not repeated

Settings = dict[str, Any]
Space = Mapping[str, Sequence[Any]]


class Trial(NamedTuple):
    """One point of the space that was tried.

    Attributes
    ----------
    settings : dict
        Each knob's value.
    value : float
        The median of its repeats; not a number when it failed.
    values : tuple of float
        The repeats.
    state : {"done", "pruned", "failed"}
        `pruned`: too far behind the best for all its repeats.
    why : str
        Of a failed one: why, and its last lines.
    seconds : float
        How long it took.
    others : float or None
        The share of the cores that other work took meanwhile, if known.
    busy : bool
        Whether its figure is doubtful for that.
    """

    settings: Settings
    value: float
    values: tuple[float, ...]
    state: Literal["done", "pruned", "failed"]
    why: str = ""
    seconds: float = 0.0
    others: float | None = None
    busy: bool = False


def size(space: Space) -> int:
    """Return how many points a space has."""
    return math.prod(map(len, space.values()))


def best(trials: Sequence[Trial], minimize: bool = False) -> Trial | None:
    """Return the best of the trials that had all their repeats; None when there is none."""
    done = [trial for trial in trials if trial.state == "done"]
    return (min if minimize else max)(done, key=lambda trial: trial.value, default=None)


def search(
    space: Space,
    objective: Callable[[Settings], float],
    trials: int,
    seed: int = 0,
    sampler: Literal["tpe", "random"] = "tpe",
    minimize: bool = False,
    default: Settings | None = None,
    repeats: int = 1,
    minutes: float = math.inf,
    on_trial: Callable[[Trial, list[Trial]], None] = lambda trial, so_far: None,
    study: optuna.Study | None = None,
) -> list[Trial]:
    """Try points of a space, none of them twice, until the budget or the space is used up.

    Parameters
    ----------
    space : mapping of str to sequence
        Each knob's values. Numbers in rising order are searched as neighbours, anything else as unordered choices. None
        may be among them, for a knob that is left alone.
    objective : callable
        Takes the settings, a dict, and gives the figure. When it raises LabError, the trial has failed.
    trials : int
        How many there may be at most, with those that the study has already.
    seed : int
        Of the sampler: the same figures give the same search.
    sampler : {"tpe", "random"}
        Random search draws evenly from the points that are left.
    minimize : bool
        Whether small figures are good, as with times.
    default : dict, optional
        The settings to try first. When these fail there is nothing to compare with, and their error is raised.
    repeats : int
        How often a point is measured. A trial is given up (pruned) after a repeat, when the median so far is more than
        `HOPELESS` behind the best.
    minutes : float
        No trial starts after so many.
    on_trial : callable
        Is given each trial as it ends, and all so far.
    study : optuna.Study, optional
        What to go on with, and to keep the trials in; by default one in memory. See `trials_of`.

    Returns
    -------
    list of Trial
        In the order of their trying.
    """
    if trials < 1 or repeats < 1:
        raise LabError(f"{trials} trials of {repeats} repeats are nothing to do: give at least 1 of each.")
    until = time.monotonic() + 60 * minutes
    study = study or optuna.create_study(direction="minimize" if minimize else "maximize")
    ended = trials_of(study)
    proposer = _Untried(space, ended, math.inf if sampler == "random" else STARTUP, seed + len(ended))
    study.sampler = proposer
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))  # asked for when it was interrupted
    if default and not waiting and proposer.point(default) not in proposer.tried:
        study.enqueue_trial(dict(zip(space, proposer.point(default), strict=True)))
    while len(ended) < trials and len(proposer.tried) < size(space) and time.monotonic() < until:
        study.pruner = _pruner(best(ended, minimize), minimize)
        asked = study.ask(proposer.distributions)
        settings = {name: values[asked.params[name]] for name, values in space.items()}
        trial = _measure(study, asked, settings, objective, repeats, vital=settings == default)
        ended.append(trial)
        proposer.tried.add(proposer.point(settings))
        on_trial(trial, ended)
    return ended


def trials_of(study: optuna.Study) -> list[Trial]:
    """Return the trials that a study has; one that was cut off when its process ended doesn't count."""
    kept = []
    for frozen in study.get_trials(deepcopy=False):
        if frozen.state in (TrialState.COMPLETE, TrialState.PRUNED):
            kept.append(Trial(**{**frozen.user_attrs, "values": tuple(frozen.user_attrs["values"])}))
        elif frozen.state == TrialState.RUNNING:
            study.tell(frozen.number, state=TrialState.FAIL)
    return kept


def as_study(space: Space, trials: Sequence[Trial]) -> optuna.Study:
    """Return a study in memory of trials that have a figure, those that were pruned too, for Optuna's own analyses."""
    study = optuna.create_study(direction="maximize")
    proposer = _Untried(space, (), STARTUP, 0)
    for trial in trials:
        places = dict(zip(space, proposer.point(trial.settings), strict=True))
        study.add_trial(optuna.create_trial(params=places, distributions=proposer.distributions, value=trial.value))
    return study


def _measure(
    study: optuna.Study,
    asked: optuna.Trial,
    settings: Settings,
    objective: Callable[[Settings], float],
    repeats: int,
    vital: bool,
) -> Trial:
    """Measure one point and tell the study; what ends the search leaves no trace in it."""
    began, values, state, why = time.monotonic(), [], "done", ""
    others = load.Others()
    try:
        with load.combine() as others:
            for number in range(repeats):
                values.append(_figure(objective(settings)))
                asked.report(statistics.median(values), number)
                if number + 1 < repeats and asked.should_prune():
                    state = "pruned"
                    break
    except LabError as error:
        if vital:
            study.tell(asked, state=TrialState.FAIL)
            raise
        state, why = "failed", str(error)
    except BaseException:
        study.tell(asked, state=TrialState.FAIL)
        raise
    value = math.nan if state == "failed" else statistics.median(values)
    seconds = time.monotonic() - began
    trial = Trial(settings, value, tuple(values), state, why, seconds, others.share, others.busy)
    for name, held in trial._asdict().items():
        asked.set_user_attr(name, held)
    if state == "done":
        study.tell(asked, value)
    else:  # a failure too: TPE learns nothing from Optuna's FAIL, but that such points are worse from PRUNED
        study.tell(asked, state=TrialState.PRUNED)
    return trial


def _figure(given: Any) -> float:
    if not math.isfinite(given):
        raise LabError(f"its figure is {given}, and that cannot be compared.")
    return float(given)


def _pruner(reference: Trial | None, minimize: bool) -> optuna.pruners.BasePruner:
    """Return up what is hopeless beside the best so far."""
    if reference is None:
        return optuna.pruners.NopPruner()
    margin = HOPELESS * abs(reference.value)
    return ThresholdPruner(upper=reference.value + margin) if minimize else ThresholdPruner(reference.value - margin)


class _Untried(TPESampler):
    """TPE that proposes no point twice. With endless start-up it is random search without replacement.

    To Optuna a knob is the place of its value among its values, so that the same value need not be sorted twice.
    """

    def __init__(self, space: Space, ended: Sequence[Trial], startup: float, seed: int):
        super().__init__(multivariate=True, constant_liar=False, n_startup_trials=startup, seed=seed)
        self._space = {name: list(values) for name, values in space.items()}
        self._random = np.random.default_rng(seed)
        self.distributions = {name: _distribution(name, values) for name, values in space.items()}
        self.tried = {self.point(trial.settings) for trial in ended}

    def point(self, settings: Settings) -> tuple[int, ...]:
        """Return the place of each knob's value."""
        try:
            return tuple(values.index(settings[name]) for name, values in self._space.items())
        except (KeyError, ValueError) as error:
            raise LabError(f"{settings} is no point of this space: {self._space}.") from error

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the space: all knobs are there from the first trial on."""
        return {name: values for name, values in self.distributions.items() if not values.single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, int]:
        """Propose a point."""
        for _ in range(PROPOSALS):
            proposed = super().sample_relative(study, trial, search_space)
            if not proposed:  # still in the start-up
                break
            if tuple(proposed.get(name, 0) for name in self._space) not in self.tried:
                return proposed
        while len(self.tried) < size(self._space):
            point = tuple(int(self._random.integers(len(values))) for values in self._space.values())
            if point not in self.tried:
                return dict(zip(self._space, point, strict=True))
        return {}


def _distribution(name: str, values: Sequence[Any]) -> BaseDistribution:
    if not values:
        raise LabError(f"the knob {name} has no values: give it some, or leave it out.")
    numbers = [value for value in values if isinstance(value, int | float)]
    in_order = len(values) - len(numbers) <= values.count(None) and numbers == sorted(numbers)
    return IntDistribution(0, len(values) - 1) if in_order else CategoricalDistribution(range(len(values)))
