"""The search for the best point of a space when only few of its points can be tried.

A Gaussian process (`gaussian_process`) proposes what to try next, in a study of Optuna's. Or Optuna's tree-structured
Parzen estimator (TPE) does: Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization"; several knobs
together: Falkner et al. 2018, arXiv 1807.01774.

Why a Gaussian process: with 5% of the points of `data/tuning-grid.csv`, it found 95.6% of the best speed, TPE 93.6% and
random search 92.3% (means of 200 seeds, standard errors 0.3); with the default settings first, 95.4%, and TPE 92.4%.
With two measurements of each point, pruned as here, 5% of the grid's measurements found 96.6%. On other landscapes, 100
seeds each, it and TPE found with 5% of the points (30 at most):

- the grid with each knob's values shuffled: 95.6% and 93.9%; its inverse, where the slowest is best: 81.2% and 83.5%;
- random effects of five knobs and their pairs: 96.2% and 93.1%; eight knobs of which two matter: 96.8% and 95.1%;
- two knobs, 672 points, a smooth top: 99.0% and 97.0%; eight knobs, 110,592 points: 93.3% and 82.5% (40 seeds).

Other settings of TPE (start-up trials, share of good ones, candidates, prior) were no better on the grid. With all
knobs as choices without an order and a Sobol start it found 96.1% there, and 94.0% where the top is smooth.
"""

import itertools
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
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from labkit.system import load
from labkit.system.errors import LabError
from labkit.tune import gaussian_process

optuna.logging.set_verbosity(optuna.logging.WARNING)  # it reports every trial, and so does `lab tune`

STARTUP_TRIALS = 5  # blind ones before the search learns; 3 to 10 did equally well, with 5% of each space tried
MAX_CANDIDATES = 4000  # points that a Gaussian process looks at before each trial
MAX_PROPOSALS = 10  # of TPE's that may be points tried already, before a random point is taken
PRUNING_MARGIN = 0.2  # a trial that is farther behind the best, as a share of it, is not repeated

SamplerName = Literal["gp", "tpe", "random"]
State = Literal["done", "pruned", "failed"]
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
    failure : str
        How it failed, with its last lines; empty when it did not.
    seconds : float
        How long it took.
    others : float or None
        The share of the cores that other work took meanwhile, if known.
    busy : bool
        Whether its metric is doubtful for that.
    """

    settings: Settings
    value: float
    values: tuple[float, ...]
    state: State
    failure: str = ""
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
    sampler: SamplerName = "gp",
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
        Takes the settings, a dict, and returns the metric. When it raises LabError, the trial has failed.
    trials : int
        How many there may be at most, with those that the study has already.
    seed : int
        Of the sampler: the same metrics give the same search.
    sampler : {"gp", "tpe", "random"}
        A Gaussian process, TPE, or random search, which draws evenly from the points that are left.
    minimize : bool
        Whether a small metric is good, as with times.
    default : dict, optional
        The settings to try first. When these fail there is nothing to compare with, and their error is raised.
    repeats : int
        How often a point is measured. A trial is given up (pruned) after a repeat, when the median so far is more than
        `PRUNING_MARGIN` behind the best.
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
    startup = size(space) if sampler == "random" else STARTUP_TRIALS
    kind = _GaussianProcessSampler if sampler == "gp" else _UntriedSampler
    proposer = kind(space, ended, startup, seed + len(ended))
    study.sampler = proposer
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))  # proposed when it was interrupted
    if default and not waiting and proposer.point(default) not in proposer.tried:
        study.enqueue_trial(dict(zip(space, proposer.point(default), strict=True)))
    while len(ended) < trials and len(proposer.tried) < size(space) and time.monotonic() < until:
        study.pruner = _pruner(best(ended, minimize), minimize)
        proposed = study.ask(proposer.distributions)
        settings = {name: values[proposed.params[name]] for name, values in space.items()}
        trial = _measure(study, proposed, settings, objective, repeats, required=settings == default)
        ended.append(trial)
        proposer.tried.add(proposer.point(settings))
        on_trial(trial, ended)
    return ended


def trials_of(study: optuna.Study) -> list[Trial]:
    """Return the trials that a study has, without those that were running when their process ended."""
    kept = []
    for frozen in study.get_trials(deepcopy=False):
        if frozen.state in (TrialState.COMPLETE, TrialState.PRUNED):
            kept.append(Trial(**{**frozen.user_attrs, "values": tuple(frozen.user_attrs["values"])}))
        elif frozen.state == TrialState.RUNNING:
            study.tell(frozen.number, state=TrialState.FAIL)
    return kept


def as_study(space: Space, trials: Sequence[Trial]) -> optuna.Study:
    """Return a study in memory of trials that have a metric, those that were pruned too, for Optuna's own analyses."""
    study = optuna.create_study(direction="maximize")
    proposer = _UntriedSampler(space, (), STARTUP_TRIALS, 0)
    for trial in trials:
        places = dict(zip(space, proposer.point(trial.settings), strict=True))
        study.add_trial(optuna.create_trial(params=places, distributions=proposer.distributions, value=trial.value))
    return study


def _measure(
    study: optuna.Study,
    proposed: optuna.Trial,
    settings: Settings,
    objective: Callable[[Settings], float],
    repeats: int,
    required: bool,
) -> Trial:
    """Measure one point and record it in the study; a search that ends meanwhile leaves no trace there."""
    began = time.monotonic()
    values: list[float] = []
    state: State = "done"
    failure = ""
    others = load.Others()
    try:
        with load.combine() as others:
            for number in range(repeats):
                values.append(_finite(objective(settings)))
                proposed.report(statistics.median(values), number)
                if number + 1 < repeats and proposed.should_prune():
                    state = "pruned"
                    break
    except LabError as error:
        if required:
            study.tell(proposed, state=TrialState.FAIL)
            raise
        state, failure = "failed", str(error)
    except BaseException:
        study.tell(proposed, state=TrialState.FAIL)
        raise
    value = math.nan if state == "failed" else statistics.median(values)
    seconds = time.monotonic() - began
    trial = Trial(settings, value, tuple(values), state, failure, seconds, others.share, others.busy)
    for name, held in trial._asdict().items():
        proposed.set_user_attr(name, held)
    if state == "done":
        study.tell(proposed, value)
    else:  # a failure too: TPE learns nothing from Optuna's FAIL, but that such points are worse from PRUNED
        study.tell(proposed, state=TrialState.PRUNED)
    return trial


def _finite(metric: float) -> float:
    if not math.isfinite(metric):
        raise LabError(f"its metric is {metric}, and that cannot be compared.")
    return float(metric)


def _pruner(reference: Trial | None, minimize: bool) -> optuna.pruners.BasePruner:
    """Return the pruner of trials that are far behind the best so far."""
    if reference is None:
        return optuna.pruners.NopPruner()
    margin = PRUNING_MARGIN * abs(reference.value)
    return ThresholdPruner(upper=reference.value + margin) if minimize else ThresholdPruner(reference.value - margin)


class _UntriedSampler(TPESampler):
    """TPE that proposes no point twice. When all trials are start-up, it is random search without replacement.

    To Optuna a knob is the place of its value among its values, so that the same value need not be sorted twice.
    """

    def __init__(self, space: Space, ended: Sequence[Trial], startup: int, seed: int):
        super().__init__(multivariate=True, constant_liar=False, n_startup_trials=startup, seed=seed)
        self._space = {name: list(values) for name, values in space.items()}
        self._random = np.random.default_rng(seed)
        self._ended, self._startup = ended, startup
        self.distributions = {name: _distribution(name, values) for name, values in space.items()}
        self.tried = {self.point(trial.settings) for trial in ended}

    def point(self, settings: Settings) -> tuple[int, ...]:
        """Return the place of each knob's value."""
        try:
            return tuple(values.index(settings[name]) for name, values in self._space.items())
        except (KeyError, ValueError) as error:
            raise LabError(f"{settings} is not a point of this space: {self._space}.") from error

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the space: all knobs are there from the first trial on."""
        return {name: values for name, values in self.distributions.items() if not values.single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, int]:
        """Propose a point."""
        for _ in range(MAX_PROPOSALS):
            proposed = super().sample_relative(study, trial, search_space)
            if not proposed:  # still in the start-up
                break
            if tuple(proposed.get(name, 0) for name in self._space) not in self.tried:
                return proposed
        return dict(zip(self._space, self.draw(), strict=True)) if len(self.tried) < size(self._space) else {}

    def draw(self) -> tuple[int, ...]:
        """Return a random point that is left."""
        while True:
            point = tuple(int(self._random.integers(len(values))) for values in self._space.values())
            if point not in self.tried:
                return point


class _GaussianProcessSampler(_UntriedSampler):
    """A Gaussian process in place of TPE; its start-up trials are spread over the space, by a Sobol sequence."""

    def __init__(self, space: Space, ended: Sequence[Trial], startup: int, seed: int):
        from scipy.stats import qmc  # half a second, for which only this search has a use

        super().__init__(space, ended, startup, seed)
        spread = qmc.Sobol(len(space), rng=np.random.default_rng(seed)).random(2 ** math.ceil(math.log2(startup)))
        self._spread = [
            tuple(int(x * len(values)) for x, values in zip(row, space.values(), strict=True)) for row in spread
        ]

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, int]:
        """Propose a point."""
        if len(self.tried) == size(self._space):
            return {}
        return dict(zip(self._space, self._propose(study.direction == StudyDirection.MINIMIZE), strict=True))

    def _propose(self, minimize: bool) -> tuple[int, ...]:
        metrics = np.array([trial.value for trial in self._ended])
        known = np.isfinite(metrics)
        if len(metrics) < self._startup or not known.any():
            left = [point for point in self._spread if point not in self.tried]
            return left[0] if left else self.draw()
        if (metrics[known] > 0).all():
            metrics = np.log(metrics)  # twice as fast is as much, wherever it begins
        metrics = -metrics if minimize else metrics
        metrics[~known] = metrics[known].min()  # a failure is as bad as the worst
        tried = np.array([self.point(trial.settings) for trial in self._ended], float)
        candidates = self._candidates(tried[metrics.argmax()])
        ordered = [isinstance(values, IntDistribution) for values in self.distributions.values()]
        best = gaussian_process.most_promising(tried, metrics, np.array(candidates, float), ordered, self._random)
        return candidates[best]

    def _candidates(self, best: np.ndarray) -> list[tuple[int, ...]]:
        """Return the points that are left; of many, some at random and all that differ from the best in one knob."""
        sizes = [len(values) for values in self._space.values()]
        if size(self._space) <= MAX_CANDIDATES:
            points = set(itertools.product(*map(range, sizes)))
        else:
            points = {self.draw() for _ in range(MAX_CANDIDATES)}
            near = tuple(map(int, best))
            points |= {(*near[:knob], at, *near[knob + 1 :]) for knob, count in enumerate(sizes) for at in range(count)}
        return sorted(points - self.tried)


def _distribution(name: str, values: Sequence[Any]) -> BaseDistribution:
    if not values:
        raise LabError(f"the knob {name} has no values: give it some, or leave it out.")
    numbers = [value for value in values if isinstance(value, int | float)]
    in_order = len(values) - len(numbers) <= values.count(None) and numbers == sorted(numbers)
    return IntDistribution(0, len(values) - 1) if in_order else CategoricalDistribution(range(len(values)))
