"""One training run, from DATA to a measured model file: everything in its order, nothing hidden."""

from __future__ import annotations

import datetime
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from vitrail.data.names import shown
from vitrail.data.order import Order
from vitrail.data.randomness import permutation
from vitrail.data.store import Shape, Store, Whole, open_store
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.model.precision import autocast
from vitrail.model.vit import Head
from vitrail.tasks.dense import Dense
from vitrail.tasks.task import Task, task_for
from vitrail.training.alikeness import taken_alike
from vitrail.training.average import Average
from vitrail.training.building import feed_of, fresh_model, rates_of, starting_point
from vitrail.training.checks import check_places, check_sharing
from vitrail.training.choose import Facts, choose_model, choose_optimizer, choose_recipe, choose_view, usual_rate
from vitrail.training.distributed import Processes, distribute, end_processes, start_processes
from vitrail.training.failure import in_a_sentence, is_out_of_memory
from vitrail.training.finish import Finished, best_model, provenance
from vitrail.training.folder import RunFolder
from vitrail.training.loop import Diverged, Loop, Standing, Stopped
from vitrail.training.memory import keep_freed_memory
from vitrail.training.pace import measured_pace
from vitrail.training.parameters import optimizers
from vitrail.training.parts import Parts
from vitrail.training.plan import Length, Plan, length_of, steps_within
from vitrail.training.prepare import NAMED, Prepared, colours, prepare_data, stored_shape
from vitrail.training.progress import Progress, standard
from vitrail.training.settings import Settings
from vitrail.training.state import Saved, States, collect_tensors, restore_tensors
from vitrail.training.whitening import start_from_pictures
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load

QUICK = 2000  # held-out images that are measured on the way; the end is measured on all
VIEWS = 500_000  # images seen in a run from scratch that was given neither epochs nor minutes
TUNING_EPOCHS = 10.0


def train(
    data: str | Path, out: str | Path, settings: Settings, *, resume: bool = False, shard: bool = False
) -> Finished:
    """Train on DATA into the folder OUT. Under torchrun every process calls this; all give the same result."""
    begun = time.monotonic()
    keep_freed_memory()
    processes = start_processes()
    folder = RunFolder(out)
    try:
        processes.from_main(lambda: folder.open(resume))
        with folder.locked() if processes.is_main else nullcontext():
            if resume:
                settings = Settings.read(folder.settings)
            board = folder.tensorboard if settings.train.tensorboard else None
            progress = standard(folder.metrics, board, processes.is_main)
            try:
                session = Session(str(data), folder, settings, processes, progress, shard, begun)
                return session.run(resume)
            finally:
                progress.close()
    finally:
        end_processes(processes)


class Session:
    def __init__(
        self,
        data: str,
        folder: RunFolder,
        settings: Settings,
        processes: Processes,
        progress: Progress,
        shard: bool,
        begun: float,
    ) -> None:
        self.data, self.folder, self.settings = data, folder, settings
        self.processes, self.progress, self.shard, self.begun = processes, progress, shard, begun
        self.states = States(folder.states)
        self.alike = False  # whether the pictures of a class are all taken from one side; known once they are decoded

    def run(self, resume: bool) -> Finished:
        prepare = partial(prepare_data, self.data, self.settings.data, self.settings.train.seed, self.progress)
        prepared = self.processes.from_main(prepare)
        assert isinstance(prepared, Prepared)
        self.prepared = prepared
        if prepared.holdout is not None:
            self.settings = self.settings.with_values({"data.validation": prepared.holdout})
        try:
            loop = self._ready(resume)
        except (MemoryError, RuntimeError) as error:
            raise self._in_a_sentence(error, 0) from None
        self._train(loop)
        try:
            return self._finish(loop)
        except (MemoryError, RuntimeError) as error:
            raise self._in_a_sentence(error, max(self.states.steps(), default=0)) from None

    def _ready(self, resume: bool) -> Loop:
        """All that comes before the first step of a session."""
        self.task = self._task()
        if not resume:
            self._choose_model()
        check_sharing(self.settings.train, self.processes.world, self.shard)
        check_places(self.settings, self.task)
        self.checkpoint = starting_point(self.settings, self.task)
        self._decode(resume)
        self.plan = Plan.read(self.folder.plan) if resume else self._plan()
        if self.plan.data != self.prepared.fingerprint:
            raise VitrailError(
                f"the images of {shown(self.data)} changed since the run in {self.folder.path} began: a resumed run is "
                "the same run, so put them back, or start a new one with another --out"
            )
        loop = self._loop(self.plan)
        if resume:
            self._restore(loop)
        return loop

    # ---- before the first step

    def _task(self) -> Task:
        collection = self.prepared.collection
        task = task_for(collection.task, collection.labels, self.settings.train.class_weights)
        if not isinstance(task, Dense):  # else when the truth has been read
            task.fit([item.target for item in self.prepared.train])
        if self.settings.train.balanced and collection.task != "classify":
            raise VitrailError(f"train.balanced draws every class equally often; the task here is {collection.task}")
        return task

    def _choose_model(self) -> None:
        settings = self.settings
        if settings.model.start:
            settings = self._fitted_to(settings, load(settings.model.start))
            self.reasons = [f"model: {settings.model.start}, fine-tuned ({settings.model.train_only})"]
        else:
            if settings.model.train_only != "all":
                raise VitrailError(
                    f"model.train_only = {settings.model.train_only!r} needs a model to start from: --from"
                )
            settings, self.reasons = choose_model(settings, self._facts())
        batch = min(settings.train.batch_size, len(self.prepared.train))
        settings = settings.with_values({"train.batch_size": batch})
        asked = settings.train.lr
        self.settings = choose_optimizer(settings, self.shard, self.task.every_patch)
        train = self.settings.train
        usual = usual_rate(settings.model.train_only, bool(settings.model.start), train.optimizer, train.batch_size)
        if asked and not usual / 10 < asked < usual * 10:
            self.progress.say(f"  warning: the learning rate {asked:g} is more than 10 times off the usual {usual:.2g}")

    def _fitted_to(self, settings: Settings, start: Checkpoint) -> Settings:
        """What a model that is fine-tuned has already decided."""
        asked = settings.model
        fixed = {"model": "auto", "width": 0, "depth": 0, "heads": 0, "patch_size": 0, "stem": "auto", "pool": "auto"}
        rule = start.preprocessing.resize
        if isinstance(self.task, Dense) and rule == "crop":
            rule = "pad"  # whose answers are about all of the picture
        for name, unset in fixed.items():
            if getattr(asked, name) != unset:
                raise VitrailError(f"model.{name} is that of the model in --from, so leave it out")
        return settings.with_values(
            {
                "model.channels": asked.channels or start.config.channels,
                "model.resize": rule if asked.resize == "auto" else asked.resize,
                "model.crop_fraction": asked.crop_fraction or start.preprocessing.crop_fraction,
                "train.batch_size": settings.train.batch_size or min(32, len(self.prepared.train)),
            }
        )

    def _decode(self, resume: bool) -> None:
        """Every picture is decoded once before the run begins: what is broken is named and left out from the start."""
        how = self.settings.data
        shape = stored_shape(self.prepared, self.checkpoint.preprocessing)
        paths = [item.path for item in self.prepared.train]
        count = self.progress.counter("decoding images")
        store = open_store(paths, shape, how.cache, how.cache_gigabytes / self.processes.world, how.workers, count)
        bad = store.broken | self._parts(shape).unknown("train")
        self.store: Store = Whole(store, len(paths), bad) if bad else store
        if not resume:
            self._look([item.target for place, item in enumerate(self.prepared.train) if place not in bad])
        if not self.settings.model.start:
            mean, std = colours(self.store, len(paths) - len(bad))
            preprocessing = self.checkpoint.preprocessing.replace(mean=mean, std=std)
            self.checkpoint.preprocessing = preprocessing
            start_from_pictures(self.checkpoint.model.stem, self.store, len(paths) - len(bad), preprocessing)
        self.parts = self._parts(shape)
        broken = {paths[place]: error for place, error in bad.items()}
        broken |= self.parts.unusable("val") | self.parts.unusable("test")
        if broken:
            self._leave_out(broken)
            self.parts = self._parts(shape)
        self.parts.fit()

    def _look(self, targets: list[Any]) -> None:
        """What the pictures show of how they were taken, and what follows for how they are shown to the model."""
        task = self.prepared.collection.task
        if task in ("classify", "multilabel"):
            self.alike = taken_alike(self.store, targets if task == "classify" else [task] * len(targets))
        if not self.settings.model.start:
            self.settings = choose_view(self.settings, self._facts())
            fraction = 1.0 if self.task.dense else self.settings.model.crop_fraction
            self.checkpoint.preprocessing = self.checkpoint.preprocessing.replace(crop_fraction=fraction)

    def _facts(self) -> Facts:
        facts = self.prepared.facts(self.processes.device.type, self.settings.train.minutes)
        return replace(facts, alike=self.alike)

    def _parts(self, shape: Shape) -> Parts:
        checkpoint, how = self.checkpoint, self.settings.data
        patch = checkpoint.config.patch_size
        return Parts(self.prepared.collection, self.task, how, shape, checkpoint.preprocessing, patch)

    def _leave_out(self, broken: dict[Path, UnreadableImage]) -> None:
        for error in list(broken.values())[:NAMED]:
            self.progress.say(f"  warning: {error}; left out")
        if len(broken) > NAMED:
            self.progress.say(f"  warning: {len(broken) - NAMED} more broken files are left out; the report names them")
        self.prepared = self.prepared.without(broken)
        self.task = self._task()
        batch = min(self.settings.train.batch_size, len(self.prepared.train))
        self.settings = self.settings.with_values({"train.batch_size": batch})

    def _plan(self) -> Plan:
        """How many steps, and with them the rest of the recipe. Both are kept in the run from here on."""
        train, order = self.settings.train, self._order()
        keep_until = train.keep_until if train.keep_tokens < 1 else 0.0
        plan = self._trial()
        if train.minutes:
            plan = self._within_minutes(plan, keep_until)
        else:
            steps = max(1, round(self._epochs() * order.count / order.batch))
            self._try_all_tokens(plan)
            plan = replace(plan, lengths=(length_of(steps, keep_until, train.warmup),))
        self.settings, why = choose_recipe(self.settings, self._facts(), plan.steps * order.batch / order.count)
        start = starting_point(self.settings, self.task)  # now with its drop path; its weights may be of the pictures
        start.model.load_state_dict(self.checkpoint.model.state_dict())
        self.checkpoint = replace(start, preprocessing=self.checkpoint.preprocessing)
        plan = replace(plan, reasons=(*self.reasons, *why))
        for line in plan.reasons:
            self.progress.say(line)
        if self.processes.is_main:
            self.settings.write(self.folder.settings)
            plan.write(self.folder.plan)
        return plan

    def _within_minutes(self, plan: Plan, keep_until: float) -> Plan:
        train = self.settings.train
        held_out = sum(len(pictures) for pictures in self.parts.pictures.values())
        ending = held_out / len(self._quick())
        pace = measured_pace(self._loop(plan), 60 * train.minutes, ending)
        left = 60 * train.minutes - (time.monotonic() - self.begun) - pace.ending
        if left < pace.all_tokens:
            self.progress.say(f"  warning: {train.minutes:g} minutes are over before the first step: one is made")
        times = pace.evaluations(left)
        steps = steps_within(left, pace, keep_until, evaluations=times)
        length = length_of(steps, keep_until, train.warmup, evaluations=times)
        made = replace(plan, seconds=max(left, 1.0), pace=pace, lengths=(length,))
        told = self.processes.from_main(lambda: made)
        assert isinstance(told, Plan)
        return told

    def _try_all_tokens(self, plan: Plan) -> None:
        """One step as the last ones will be: memory that does not suffice shows now, not after most of the run."""
        if self.settings.train.keep_tokens < 1:
            loop = self._loop(plan)
            with closing(loop.feed.batches(0, 1)) as batches:
                loop.step(next(batches))

    def _epochs(self) -> float:
        if self.settings.train.epochs:
            return self.settings.train.epochs
        if self.settings.model.start:
            return TUNING_EPOCHS
        return float(min(300, max(20, round(VIEWS / len(self.prepared.train)))))

    def _trial(self) -> Plan:
        """A plan before its length is known: endless, with all tokens."""
        return Plan(
            lengths=(Length(steps=10**9, warmup=0, full_from=0, evaluate_every=10**9),),
            data=self.prepared.fingerprint,
            started=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        )

    # ---- the parts of the loop

    def _order(self) -> Order:
        train = self.settings.train
        classes = [item.target for item in self.prepared.train if isinstance(item.target, int)]
        return Order(len(self.prepared.train), train.batch_size, train.seed, classes if train.balanced else None)

    def _loop(self, plan: Plan) -> Loop:
        train, processes = self.settings.train, self.processes
        model = fresh_model(self.checkpoint, self.settings, processes.device)
        network = distribute(model, processes, self.shard)
        share = (processes.rank, processes.world)
        truths = self.parts.truths["train"]
        feed = feed_of(self.settings, self.store, truths, self._order(), self.checkpoint.preprocessing, share)
        loop = Loop(
            model=model,
            network=network,
            optimizers=optimizers(model, rates_of(self.settings)),
            average=Average(model, train.average * plan.lengths[0].steps) if train.average else None,
            task=self.task,
            feed=feed,
            plan=plan,
            recipe=train,
            processes=self.processes,
            progress=self.progress,
            precision=self._precision(),
            measure=lambda: self._measured(network),
            save=lambda standing: self._save(loop, standing),
            save_best=lambda standing: self._save_best(loop, standing),
            correct=self._correct,
            standing=Standing(),
        )
        return loop

    def _precision(self) -> Callable[[], Any]:
        kind, asked = self.processes.device.type, self.settings.train.precision
        if asked == "auto":
            return lambda: autocast(kind)
        return lambda: torch.autocast(kind, dtype=torch.bfloat16, enabled=asked == "bfloat16")

    def _measured(self, network: torch.nn.Module) -> dict[str, float]:
        outputs, targets, loss = self.parts.outputs(network, "val", self.processes, self._quick())
        found = self.task.quick_metrics(outputs, targets)
        return found if loss is None else {"loss": loss, **found}

    def _quick(self) -> list[int]:
        """A fixed part of the held-out images, so that measuring a large set does not eat the time."""
        return sorted(permutation(self.settings.train.seed, 0, len(self.parts.pictures["val"]))[:QUICK].tolist())

    # ---- state

    def _save(self, loop: Loop, standing: Standing) -> None:
        tensors = collect_tensors(loop.model, loop.optimizers, loop.average)  # every process gives its part
        if self.processes.is_main:
            self.states.save(standing.step, tensors, vars(standing))

    def _save_best(self, loop: Loop, standing: Standing) -> None:
        tensors = collect_tensors(loop.model, (), None)
        if self.processes.is_main:
            self.states.save_best(tensors, vars(standing))

    def _correct(self, plan: Plan) -> None:
        self.plan = plan
        if self.processes.is_main:
            plan.write(self.folder.plan)

    def _restore(self, loop: Loop) -> None:
        saved, notes = cast("tuple[Saved | None, list[str]]", self.processes.from_main(self.states.load_last))
        for note in notes:
            self.progress.say(f"  warning: {note}")
        if saved is not None:
            restore_tensors(saved.tensors, loop.model, loop.optimizers, loop.average)
            loop.standing = Standing(**saved.facts)
        if self.processes.is_main:
            self.folder.forget_after(loop.standing.step)
        if loop.standing.best is not None:
            self.progress.best = self.task.show(self.task.main_metric, loop.standing.best)
        self.progress.say(f"resumed after step {loop.standing.step:,} of {self.plan.steps:,}")

    def _train(self, loop: Loop) -> None:
        config = loop.model.config
        count = sum(p.numel() for p in loop.model.parameters())
        self.progress.say(
            f"training {count / 1e6:.3g} M parameters, {config.tokens} tokens an image, {self.plan.steps:,} steps of "
            f"{loop.feed.order.batch} images"
        )
        try:
            loop.run()
        except Stopped as stopped:
            self.progress.say(
                f"stopped after step {loop.standing.step:,} of {self.plan.steps:,}, everything is saved; go on with:\n"
                f"  {self.resume_command()}"
            )
            raise stopped
        except (VitrailError, MemoryError, RuntimeError) as error:
            raise self._in_a_sentence(error, self._saved_at_the_end(error, loop)) from None

    def resume_command(self) -> str:
        start = ["vitrail", "train", self.data, "--out", str(self.folder.path), "--resume"]
        if self.processes.world > 1:
            start = ["torchrun", "--nproc-per-node", str(self.processes.world), "--no-python", *start]
        return shlex.join([*start, "--shard"] if self.shard else start)

    def _saved_at_the_end(self, error: Exception, loop: Loop) -> int:
        """The step of the newest state. The last whole step is saved, where one process can do it and it is good."""
        known = isinstance(error, VitrailError) or is_out_of_memory(error)
        good = known and not loop.updating and not isinstance(error, Diverged)
        if good and loop.standing.step > max(self.states.steps(), default=0) and self.processes.world == 1:
            with suppress(VitrailError):  # the disk is full, perhaps: the state before this one is still there
                self._save(loop, loop.standing)
        return max(self.states.steps(), default=0)

    def _in_a_sentence(self, error: Exception, kept: int) -> Exception:
        return in_a_sentence(error, self.settings.train, kept, self.resume_command(), self.processes.world)

    # ---- after the last step

    def _finish(self, loop: Loop) -> Finished:
        """The best weights, calibrated, measured, and written as one file."""
        model = best_model(loop, self.states, self.checkpoint, self.settings)
        part = "test" if self.prepared.collection.part("test") else "val"
        outputs, targets, _ = self.parts.outputs(model, "val", self.processes)
        self.task.calibrate(outputs, targets)
        if part == "test":
            outputs, targets, _ = self.parts.outputs(model, "test", self.processes)
        results = self.task.evaluate(self.task.meant(outputs), targets, seed=self.settings.train.seed)
        for head in (model.head, model.distillation_head):
            if isinstance(head, Head):
                self.task.fold(head.out)
        self.checkpoint.model = model.cpu()
        history = provenance(self.settings, self.prepared, loop.standing, self.task, results, part)
        self.checkpoint.provenance |= {"source": "vitrail train", "training": history}
        if self.processes.is_main:
            self.checkpoint.save(self.folder.model)
        return Finished(
            folder=self.folder,
            checkpoint=self.checkpoint,
            task=self.task,
            settings=self.settings,
            plan=self.plan,
            standing=loop.standing,
            description=self.prepared.description,
            findings=self.prepared.findings,
            results=results,
            part={"val": "validation"}.get(part, part),
            items=self.prepared.collection.part(part),
            root=self.prepared.collection.root,
        )
