"""Where a study runs: in this process, or on a cluster. An engine takes a job and how it stands, and brings it on."""
