"""Virtual token counters: each tenant is charged for the tokens computed for it, the least charged goes first.

Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). A tenant that comes back from idleness starts at
the present virtual time, so it cannot claim the time it was away. Read `queue` next.
"""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Account:
    """One tenant. `served` is in tokens: prompt tokens computed and output tokens sampled."""

    tenant: str
    served: int = 0
    num_live: int = 0


class TokenCounters:
    """All tenants with a live request, and those still ahead of the others."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._virtual_time = 0

    def open(self, tenant: str) -> Account:
        """The account to charge a new request to."""
        account = self._accounts.setdefault(tenant, Account(tenant))
        if account.num_live == 0:
            account.served = max(account.served, self._virtual_time)
        account.num_live += 1
        return account

    def close(self, account: Account) -> None:
        """A request of it has ended; a tenant that is owed nothing and owes nothing is forgotten."""
        account.num_live -= 1
        if account.num_live == 0 and account.served <= self._virtual_time:
            del self._accounts[account.tenant]

    def advance(self, account: Account) -> None:
        """A request of this account was chosen, so it was the least served one that wants anything."""
        self._virtual_time = max(self._virtual_time, account.served)
