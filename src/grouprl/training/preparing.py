"""The phases before reinforcement: the warm-up on demonstrations, and the method's pretraining."""

from __future__ import annotations

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.stage_checks import call, numbers_of
from grouprl.methods.registry import method as catalogue_method
from grouprl.orchestrator.accounting import account_before
from grouprl.training.interrupt import Interrupt
from grouprl.training.optimise import optimise
from grouprl.training.session import Session
from grouprl.training.telling import phase, tell_step
from grouprl.training.warmup import demonstration_batch, warmup_rate


def warm_up(session: Session, stop: Interrupt) -> None:
    """Train on demonstrations, then enter the next phase."""
    config, sft = session.config, catalogue_method("sft")
    with phase(session, "warmup", config.warmup.steps, session.step):
        while session.step < config.warmup.steps and not stop.requested:
            with session.clock.step:
                numbered_examples = session.source.take(config.warmup.batch)
                size = session.source.size
                batch = demonstration_batch(
                    session.context.text.policy,
                    session.task,
                    numbered_examples,
                    config.seed,
                    examples=size,
                    history=config.sampling.history,
                    stage=session.row_source.stage,
                    teachers=[part for part in data_parts(session.method.parts()) if part.teaches],
                    errors=session.errors,
                )
                rate = warmup_rate(config.warmup, session.step)
                record = {"loss": 0.0, "lr": rate, "tokens": 0.0}
                record["demonstrations_failed"] = float(len(numbered_examples))
                if batch is not None:
                    update = optimise(session, sft.compute_advantages(batch), sft, rate, parts=1, epochs=1)
                    record["loss"], record["tokens"] = update["loss"], float(batch.mask_bt.sum())
                    record["demonstrations_failed"] -= len(batch.group_b.unique())
                    if batch.turn_bt is not None:
                        turns = float((batch.turn_bt.amax(1) + 1).sum())
                        record["demonstrated_turns"] = turns / len(batch.group_b.unique())
                session.step += 1
            tell_step(session, "warmup", record)
            if session.step % config.run.checkpoint_every == 0 and session.step < config.warmup.steps:
                session.save()
    if session.step == config.warmup.steps:
        session.begin(session.after_warmup())


def prepare_run(session: Session, stop: Interrupt) -> None:
    """Do the method's pretraining, once before its first step, piece by piece."""
    session.publish()
    pieces = session.pretraining_pieces()
    with phase(session, "pretraining", len(pieces), session.step):
        while session.step < len(pieces) and not stop.requested:
            part, number = pieces[session.step]
            first = session.source.sampled
            with session.clock.step:
                metrics = numbers_of(part, call(part, part.piece, number, session.context))
                session.step += 1
                session.publish()
            sampled = account_before(session.source.sampled - first, session.context.read_sampled_counts())
            tell_step(session, "pretraining", {**metrics, **session.context.read_notes(), **sampled})
            if session.step % session.config.run.checkpoint_every == 0 and session.step < len(pieces):
                session.save()
    if session.step == len(pieces):
        session.begin("train")
