"""Clients are told what keeps back that for which they wait (`ledger.kept_back`), and that it goes on again.

How things stand is looked at, not what happened. So whoever comes later is told as well, and so is everybody after a death of the
supervisor. While nothing is held up, nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from perdure.actors.link.messages import KeptBack
from perdure.actors.supervisor.calls import Calls, OpenCall
from perdure.actors.supervisor.sessions import Sessions
from perdure.ledger import View, all_waiting, hold_ups, live_run, unheeded


class ToldWaits:
    """The looks of one supervisor life.

    Attributes:
        unanswered: in words, that nothing becomes durable now, or else empty.
    """

    def __init__(
        self,
        view: View,
        sessions: Sessions,
        calls: Calls,
        followers: Mapping[str, Iterable[str]],
        unheeded_stops: Callable[[], list[tuple[str, int]]],
    ) -> None:
        self._view, self._sessions, self._calls, self._followers = view, sessions, calls, followers
        self._unheeded_stops = unheeded_stops
        self.unanswered = ""

    def look(self) -> None:
        """Tell each client what has changed for it."""
        by_peer = self._by_peer()
        for session in self._sessions.by_peer.values():
            if session.is_host:
                continue
            now = {run_id: list(words) for run_id, words in by_peer.get(session.peer_id, {}).items()}
            if self.unanswered:
                now.setdefault("", []).append(self.unanswered)
            before, session.kept_back = session.kept_back, now
            over = [(run_id, list[str]()) for run_id in before if run_id not in now]
            told = over + [(run_id, words) for run_id, words in now.items() if before.get(run_id) != words]
            if told:
                session.say(KeptBack(told))
        self._sessions.flush()

    def _by_peer(self) -> _ByPeer:
        view, found, stops = self._view, _ByPeer(), self._unheeded_stops()
        if not (view.parked or view.paused or view.troubles or stops):
            return found
        calls = self._calls.by_agent()
        unhosted = [agent for agent, its in calls.items() if not any(call.host_id for call in its)]
        for each in (*hold_ups(view, self._sessions.waiters, unhosted), *unheeded(view, stops)):
            if each.run is not None and each.run.last_seq > self._sessions.seq:  # it may not be durable yet
                continue
            for agent in all_waiting(view, each.agent, lambda agent: _senders(calls.get(agent, ()))):
                run = live_run(view, agent)
                words, run_id = each.told(agent, run), "" if run is None else run.run_id
                for peer_id in self._waiting_for(run_id) if run_id else (call.peer_id for call in calls.get(agent, ())):
                    found.setdefault(peer_id, {}).setdefault(run_id, {})[words] = None
        return found

    def _waiting_for(self, run_id: str) -> Iterator[str]:
        yield from self._sessions.waiters.get(run_id, ())
        yield from self._followers.get(run_id, ())


def _senders(calls: Iterable[OpenCall]) -> Iterator[str]:
    return (call.sender for call in calls if call.sender)


_ByPeer = dict[str, dict[str, dict[str, None]]]
"""By client and by run: the words that it is told."""
