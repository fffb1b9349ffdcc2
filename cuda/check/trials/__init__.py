"""Devices tried out before they are grouped: how fast they compute and exchange. Read `trial` first."""
