"""A TCP proxy that does to a server's clients what networks do: resets, refusals, silence, delays, lost replies."""

import threading
from functools import partial

from tests.soak.carrier import Carrier

FOR_EVER = float("inf")


class Proxy:
    """Carries connections from 127.0.0.1:`port` to 127.0.0.1:`target_port`, in a thread of its own, and does them harm.

    Every method may be called from any thread, and has taken effect when it returns. Faults add up; each lasts until
    restore(), or as long as it was told. To harm some clients only, give them a proxy of their own.
    """

    def __init__(self, target_port: int) -> None:
        self._carrier = Carrier(target_port)
        self._thread = threading.Thread(target=self._carrier.run, name=f"proxy to {target_port}", daemon=True)

    def __enter__(self) -> "Proxy":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Where clients connect to; it stays the same whatever happens."""
        return self._carrier.port

    @property
    def connections(self) -> int:
        """How many connections it has accepted."""
        return self._carrier.connections

    @property
    def cuts(self) -> int:
        """How many of them its faults have reset."""
        return self._carrier.cuts

    @property
    def lost(self) -> int:
        """How many replies it has swallowed."""
        return self._carrier.lost

    @property
    def carried(self) -> int:
        """How many bytes it has taken in and not swallowed, both directions together."""
        return self._carrier.carried

    def start(self) -> None:
        """Carry from now on. Connections that came before have waited."""
        self._thread.start()

    def close(self) -> None:
        """Reset all connections, and give the port back. Closing twice is closing once."""
        if self._thread.is_alive():
            self._carrier.do(self._carrier.stop)
            self._thread.join()
        self._carrier.close()

    def cut(self) -> int:
        """Reset all present connections, at both ends; new ones are accepted. Return how many there were."""
        return self._carrier.do(self._carrier.cut_all)

    def refuse(self, seconds: float = FOR_EVER) -> None:
        """Refuse new connections; present ones go on."""
        self._carrier.do(partial(self._carrier.refuse, seconds))

    def blackhole(self, seconds: float = FOR_EVER) -> None:
        """Accept, carry nothing, not even an end, and close nothing. What is held up arrives afterwards."""
        self._carrier.do(partial(self._carrier.hold, seconds))

    def delay(self, seconds: float) -> None:
        """Let everything arrive so much later, in each direction."""
        self._carrier.do(partial(self._carrier.be_late, seconds))

    def lose_replies(self, to: bytes = b"") -> None:
        """Carry requests; instead of the answer to one in which `to` (a regex) is found, reset the connection."""
        self._carrier.do(partial(self._carrier.lose, to))

    def restore(self) -> None:
        """End all faults."""
        self._carrier.do(self._carrier.restore)
