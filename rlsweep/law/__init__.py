"""The sigmoid law of pass rate against compute: estimate, intervals, extrapolate, compare. numpy and scipy only."""
