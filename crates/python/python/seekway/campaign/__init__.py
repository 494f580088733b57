"""Campaigns: studies of thousands of comparisons, on this machine or on many.

A study is data: which loads, devices, policies and seeds, and how they are combined. Each cell
of it is one policy with one seed, named by the hash of its inputs. Results are a data set in
Parquet to which a file is added for each batch of cells; what is there is not run again.

    results = seekway.campaign.Campaign.from_file("study.toml").run("out")
    results.to_pandas().groupby("policy")["p99_ms"].median()
"""

from seekway.campaign.results import Results
from seekway.campaign.run import Campaign, CampaignError
from seekway.campaign.study import Cell, Study

__all__ = ["Campaign", "CampaignError", "Cell", "Results", "Study"]
