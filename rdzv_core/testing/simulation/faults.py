"""What each fault does to the world."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rdzv_core.testing.memory import Snapshot
from rdzv_core.testing.simulation.plan import (
    ClockStep,
    Crash,
    CrashHost,
    Deaf,
    FailHost,
    FailWorkers,
    Fault,
    ForgetPages,
    ForgetRound,
    HangHost,
    Leave,
    LoseLease,
    LosePages,
    LoseRegister,
    Partition,
    Pause,
    PauseDecider,
    Rival,
    Rollback,
    SlowShutdown,
    Stall,
    Weather,
    Wipe,
)
from rdzv_core.wire import encode_register

if TYPE_CHECKING:
    from rdzv_core.testing.simulation.node import Node
    from rdzv_core.testing.simulation.world import World

__all__ = ["pause", "schedule"]


def schedule(world: World, fault: Fault) -> None:
    """Put a fault on the agenda."""
    world.agenda.at(fault.at, _strike, world, fault)
    if isinstance(fault, Rollback):
        world.agenda.at(fault.at - fault.lost, _remember, world, fault)


def _strike(world: World, fault: Fault) -> None:
    if world.transcript is not None:
        world.transcript.fault(fault)
    world.laws.disturb(fault.end)
    match fault:
        case Crash(node=place):
            _crash(world, world.at_place(place), orphans=fault.orphans, back_after=fault.back_after, place=place)
        case ForgetRound():
            world.forget_round = fault.after
        case ForgetPages():
            world.forget_pages = True
        case CrashHost():
            world.bootstrap.crash_next.append(
                lambda node: _crash(world, node, orphans=False, back_after=fault.back_after, place=node.place)
            )
        case HangHost():
            world.bootstrap.hang_next += 1
        case FailHost():
            world.bootstrap.fail_next += 1
        case Leave(node=place):
            _leave(world, world.at_place(place), fault)
        case Pause(node=place):
            pause(world, world.at_place(place), fault.seconds)
        case PauseDecider():
            world.network.pause_next_decider(fault.seconds)
        case Deaf(node=place):
            node = world.at_place(place)
            if node is not None:
                node.agent.deaf_until = fault.at + fault.seconds
        case SlowShutdown(node=place):
            node = world.at_place(place)
            if node is not None:
                node.agent.shutdown_delay = fault.seconds
        case FailWorkers(node=place):
            node = world.at_place(place)
            if node is not None and node.agent.crew is not None:
                node.agent.crew.fail(node.agent)
        case ClockStep(node=place, by=by):
            node = world.at_place(place)
            if node is not None:
                node.clock.skew += by
        case Partition():
            world.network.cut(fault)
            world.refresh_fine()
            world.agenda.after(fault.seconds, _mended, world, fault)
        case Weather():
            world.network.turn(fault)
            world.refresh_fine()
            world.agenda.after(fault.seconds, _cleared, world, fault)
        case Stall():
            world.network.stall(fault)
            world.refresh_fine()
            world.agenda.after(fault.seconds, _went_on, world)
        case _:
            _spoil(world, fault)
            world.store_changed()


def _spoil(world: World, fault: Fault) -> None:
    """Change what the store holds behind everybody's back."""
    run = world.store._runs.get(world.run_id)
    match fault:
        case Wipe():
            world.store.wipe(world.run_id)
            world.data_lost_at = world.agenda.now
        case Rollback():
            snapshot = world.snapshots.pop(fault, None)
            if snapshot is not None:
                world.store.restore(snapshot)
                world.data_lost_at = world.agenda.now
        case LoseRegister() if run is not None and run.register is not None:
            run.register.expires = world.agenda.now
            world.data_lost_at = world.agenda.now
            world.store.sweep()
        case LosePages() if run is not None:
            run.pages.clear()
            world.data_lost_at = world.agenda.now
        case LoseLease() if run is not None:
            run.lease = None
        case Rival() if world.register is not None:
            register = replace(world.register, revision=world.register.revision + 1, write_id="rival")
            world.store.poke(world.run_id, encode_register(register))


def _remember(world: World, fault: Rollback) -> None:
    snapshot: Snapshot = world.store.snapshot()
    world.snapshots[fault] = snapshot


def _crash(world: World, node: Node | None, *, orphans: bool, back_after: float | None, place: int) -> None:
    if node is not None:
        node.kill()
        node.agent.died(orphans=orphans)
    if back_after is not None:
        world.agenda.after(back_after, world.spawn, place)
        world.laws.disturb(world.agenda.now + back_after)


def _leave(world: World, node: Node | None, fault: Leave) -> None:
    if node is not None:
        node.happen(node.agent.leave, "was told to go")
    if fault.back_after is not None:
        world.agenda.after(fault.back_after, world.spawn, fault.node)


def pause(world: World, node: Node | None, seconds: float) -> None:
    """Stop a node, and let it go on later."""
    if node is None or node.paused or not node.alive:
        return
    node.paused = True
    world.refresh_fine()
    world.laws.disturb(world.agenda.now + seconds)
    world.agenda.after(seconds, _resumed, world, node)


def _resumed(world: World, node: Node) -> None:
    if node.alive:
        node.resume()
        world.refresh_fine()


def _mended(world: World, fault: Partition) -> None:
    world.network.mend(fault)
    world.refresh_fine()


def _cleared(world: World, fault: Weather) -> None:
    world.network.clear(fault)
    world.refresh_fine()


def _went_on(world: World) -> None:
    world.network.go_on()
    world.refresh_fine()
