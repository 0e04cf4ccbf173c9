"""Search for the best point of a space by trying only a few of its points.

A Gaussian process (`gaussian_process`) proposes what to try next, in an Optuna study. The alternative is Optuna's
tree-structured Parzen estimator (TPE): Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization"; for several
knobs jointly: Falkner et al. 2018, arXiv 1807.01774.

Why a Gaussian process: with 5% of the points of `data/tuning-grid.csv`, it found 95.6% of the best speed, TPE 93.6% and
random search 92.3% (means of 200 seeds, standard errors 0.3); starting with the default settings, 95.4% vs TPE's 92.4%.
With two measurements per point, pruned as here, 5% of the grid's measurements found 96.6%. On other landscapes, 100
seeds each, it and TPE found with 5% of the points (at most 30):

- the grid with each knob's values shuffled: 95.6% and 93.9%; its inverse, where the slowest is best: 81.2% and 83.5%;
- random effects of five knobs and their pairs: 96.2% and 93.1%; eight knobs of which two matter: 96.8% and 95.1%;
- two knobs, 672 points, a smooth top: 99.0% and 97.0%; eight knobs, 110,592 points: 93.3% and 82.5% (40 seeds).

Other TPE settings (start-up trials, share of good ones, candidates, prior) were no better on the grid. With all knobs
as unordered choices and a Sobol start it found 96.1% there, and 94.0% where the top is smooth.
"""

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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

optuna.logging.set_verbosity(optuna.logging.WARNING)  # `lab tune` reports each trial itself

STARTUP_TRIALS = 5  # exploratory trials before the search learns; 3 to 10 did equally well with 5% of each space tried
MAX_CANDIDATES = 4000  # points that the Gaussian process considers before each trial
MAX_PROPOSALS = 10  # TPE proposals that may repeat tried points before a random point is used
MIN_OBSERVED_S = 0.1  # an objective that takes less, such as a look-up, costs less than to observe contention
PRUNING_MARGIN = 0.2  # a trial that is further behind the best, as a share of it, is not repeated

SamplerName = Literal["gp", "tpe", "random"]
State = Literal["done", "pruned", "failed"]
Settings = dict[str, Any]
Space = Mapping[str, Sequence[Any]]


class Trial(NamedTuple):
    """A tried point of the space.

    Attributes
    ----------
    settings : dict
        Each knob's value.
    value : float
        The median of its repeats; NaN if it failed.
    values : tuple of float
        The repeats.
    state : {"done", "pruned", "failed"}
        `pruned`: too far behind the best to be worth all its repeats.
    failure : str
        The failure with its last lines; empty if there was none.
    seconds : float
        The duration.
    others : float or None
        The share of the cores that other work used meanwhile, if known.
    busy : bool
        Whether this makes the metric unreliable.
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
    """Return the number of points in a space."""
    return math.prod(map(len, space.values()))


def best(trials: Sequence[Trial], minimize: bool = False) -> Trial | None:
    """Return the best trial with all its repeats, or None."""
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
    """Try points of a space, none of them twice, until the budget or the space is exhausted.

    Parameters
    ----------
    space : mapping of str to sequence
        Each knob's values. Ascending numbers are treated as ordered, anything else as unordered choices. None stands
        for an unset knob.
    objective : callable
        Takes a dict of settings and returns the metric. A LabError marks the trial as failed.
    trials : int
        Maximum number of trials, including those already in the study.
    seed : int
        The sampler's seed: the same metrics give the same search.
    sampler : {"gp", "tpe", "random"}
        A Gaussian process, TPE, or random search, which draws uniformly from the untried points.
    minimize : bool
        Whether lower is better, as for times.
    default : dict, optional
        The settings to try first. If they fail there is nothing to compare with, and their error is raised.
    repeats : int
        Measurements per point. A trial is pruned after a repeat if its median so far is more than `PRUNING_MARGIN`
        behind the best.
    minutes : float
        Start no trial after this time.
    on_trial : callable
        Receives each trial as it ends, and all trials so far.
    study : optuna.Study, optional
        The study to resume and to store the trials in; by default a new one in memory. See `trials_of`.

    Returns
    -------
    list of Trial
        All trials in order.
    """
    if trials < 1 or repeats < 1:
        raise LabError(f"trials ({trials}) and repeats ({repeats}) must both be at least 1.")
    until = time.monotonic() + 60 * minutes
    study = study or optuna.create_study(direction="minimize" if minimize else "maximize")
    completed = trials_of(study)
    startup = size(space) if sampler == "random" else STARTUP_TRIALS
    sampler_class = _GaussianProcessSampler if sampler == "gp" else _UntriedSampler
    proposer = sampler_class(space, completed, startup, seed + len(completed))
    study.sampler = proposer
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))  # proposed before an interrupt
    if default and not waiting and proposer.point(default) not in proposer.tried:
        study.enqueue_trial(dict(zip(space, proposer.point(default), strict=True)))
    while len(completed) < trials and len(proposer.tried) < size(space) and time.monotonic() < until:
        study.pruner = _pruner(best(completed, minimize), minimize)
        proposal = study.ask(proposer.distributions)
        settings = {name: values[proposal.params[name]] for name, values in space.items()}
        slow = not completed or completed[-1].seconds > MIN_OBSERVED_S
        observation = load.observe() if slow else contextlib.nullcontext(load.Contention())
        trial = _measure(study, proposal, settings, objective, repeats, observation, required=settings == default)
        completed.append(trial)
        proposer.tried.add(proposer.point(settings))
        on_trial(trial, completed)
    return completed


def trials_of(study: optuna.Study) -> list[Trial]:
    """Return a study's trials, without those that were running when their process ended."""
    trials = []
    for frozen in study.get_trials(deepcopy=False):
        if frozen.state in (TrialState.COMPLETE, TrialState.PRUNED):
            trials.append(Trial(**{**frozen.user_attrs, "values": tuple(frozen.user_attrs["values"])}))
        elif frozen.state == TrialState.RUNNING:
            study.tell(frozen.number, state=TrialState.FAIL)
    return trials


def as_study(space: Space, trials: Sequence[Trial]) -> optuna.Study:
    """Return an in-memory study of trials that have a metric (pruned ones too), for Optuna's analyses."""
    study = optuna.create_study(direction="maximize")
    proposer = _UntriedSampler(space, (), STARTUP_TRIALS, 0)
    for trial in trials:
        indices = dict(zip(space, proposer.point(trial.settings), strict=True))
        study.add_trial(optuna.create_trial(params=indices, distributions=proposer.distributions, value=trial.value))
    return study


def _measure(
    study: optuna.Study,
    proposal: optuna.Trial,
    settings: Settings,
    objective: Callable[[Settings], float],
    repeats: int,
    observation: AbstractContextManager[load.Contention],
    required: bool,
) -> Trial:
    """Measure one point and record it in the study; an interrupted measurement leaves no trace there."""
    start = time.monotonic()
    values: list[float] = []
    state: State = "done"
    failure = ""
    others = load.Contention()
    try:
        with observation as others:
            for number in range(repeats):
                values.append(_finite(objective(settings)))
                proposal.report(statistics.median(values), number)
                if number + 1 < repeats and proposal.should_prune():
                    state = "pruned"
                    break
    except LabError as error:
        if required:
            study.tell(proposal, state=TrialState.FAIL)
            raise
        state, failure = "failed", str(error)
    except BaseException:
        study.tell(proposal, state=TrialState.FAIL)
        raise
    value = math.nan if state == "failed" else statistics.median(values)
    seconds = time.monotonic() - start
    trial = Trial(settings, value, tuple(values), state, failure, seconds, others.share, others.busy)
    for name, attribute in trial._asdict().items():
        proposal.set_user_attr(name, attribute)
    if state == "done":
        study.tell(proposal, value)
    else:  # failures too: TPE learns nothing from Optuna's FAIL, but learns from PRUNED that such points are worse
        study.tell(proposal, state=TrialState.PRUNED)
    return trial


def _finite(metric: float) -> float:
    if not math.isfinite(metric):
        raise LabError(f"its metric is {metric}, which can't be compared.")
    return float(metric)


def _pruner(reference: Trial | None, minimize: bool) -> optuna.pruners.BasePruner:
    """Return a pruner for trials far behind the best so far."""
    if reference is None:
        return optuna.pruners.NopPruner()
    margin = PRUNING_MARGIN * abs(reference.value)
    return ThresholdPruner(upper=reference.value + margin) if minimize else ThresholdPruner(reference.value - margin)


class _UntriedSampler(TPESampler):
    """TPE that never proposes a point twice. If all trials are start-up, it is random search without replacement.

    Optuna sees the index of each knob's value rather than the value.
    """

    def __init__(self, space: Space, completed: Sequence[Trial], startup: int, seed: int):
        super().__init__(multivariate=True, constant_liar=False, n_startup_trials=startup, seed=seed)
        self._space = {name: list(values) for name, values in space.items()}
        self._random = np.random.default_rng(seed)
        self._completed, self._startup = completed, startup
        self.distributions = {name: _distribution(name, values) for name, values in space.items()}
        self.tried = {self.point(trial.settings) for trial in completed}

    def point(self, settings: Settings) -> tuple[int, ...]:
        """Return the index of each knob's value."""
        try:
            return tuple(values.index(settings[name]) for name, values in self._space.items())
        except (KeyError, ValueError) as error:
            raise LabError(f"{settings} is not a point of this space: {self._space}.") from error

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the space; all knobs are known from the first trial on."""
        return {name: values for name, values in self.distributions.items() if not values.single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, int]:
        """Propose a point."""
        for _ in range(MAX_PROPOSALS):
            proposed = super().sample_relative(study, trial, search_space)
            if not proposed:  # still in start-up
                break
            if tuple(proposed.get(name, 0) for name in self._space) not in self.tried:
                return proposed
        return dict(zip(self._space, self.draw(), strict=True)) if len(self.tried) < size(self._space) else {}

    def draw(self) -> tuple[int, ...]:
        """Return a random untried point."""
        while True:
            point = tuple(int(self._random.integers(len(values))) for values in self._space.values())
            if point not in self.tried:
                return point


class _GaussianProcessSampler(_UntriedSampler):
    """A Gaussian process instead of TPE; a Sobol sequence spreads its start-up trials over the space."""

    def __init__(self, space: Space, completed: Sequence[Trial], startup: int, seed: int):
        from scipy.stats import qmc  # takes half a second, and only this search needs it

        super().__init__(space, completed, startup, seed)
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
        metrics = np.array([trial.value for trial in self._completed])
        known = np.isfinite(metrics)
        if len(metrics) < self._startup or not known.any():
            untried = [point for point in self._spread if point not in self.tried]
            return untried[0] if untried else self.draw()
        if (metrics[known] > 0).all():
            metrics = np.log(metrics)  # compare metrics by their ratios
        metrics = -metrics if minimize else metrics
        metrics[~known] = metrics[known].min()  # a failure counts as the worst
        tried = np.array([self.point(trial.settings) for trial in self._completed], float)
        candidates = self._candidates(tried[metrics.argmax()])
        ordered = [isinstance(values, IntDistribution) for values in self.distributions.values()]
        best = gaussian_process.most_promising(tried, metrics, np.array(candidates, float), ordered, self._random)
        return candidates[best]

    def _candidates(self, best: np.ndarray) -> list[tuple[int, ...]]:
        """Return the untried points; in a large space, random ones and all that differ from the best in one knob."""
        sizes = [len(values) for values in self._space.values()]
        if size(self._space) <= MAX_CANDIDATES:
            points = set(itertools.product(*map(range, sizes)))
        else:
            points = {self.draw() for _ in range(MAX_CANDIDATES)}
            near = tuple(map(int, best))
            points |= {(*near[:knob], i, *near[knob + 1 :]) for knob, count in enumerate(sizes) for i in range(count)}
        return sorted(points - self.tried)


def _distribution(name: str, values: Sequence[Any]) -> BaseDistribution:
    if not values:
        raise LabError(f"the knob {name} has no values: add some, or remove the knob.")
    numbers = [value for value in values if isinstance(value, int | float)]
    ordered = len(values) - len(numbers) <= values.count(None) and numbers == sorted(numbers)
    return IntDistribution(0, len(values) - 1) if ordered else CategoricalDistribution(range(len(values)))
