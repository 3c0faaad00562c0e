"""How a job's commands really run: as local processes, or in containers, inside one "VM" each."""
