# Trainings in real containers, with podman: images, tests, and the demo in both ways in.
# Where podman cannot run, one line says why and what to install, and make fails.
DEMOS ?= podman podman-sidecar
DEMO_podman := --executor podman
DEMO_podman-sidecar := --executor podman --sidecar

.PHONY: images containers container-tests $(DEMOS:%=demo-%)

images: install
	@$(BIN)/python docker/images.py

container-tests: images
	$(BIN)/pytest tests/integration/stack/test_stack_containers.py tests/integration/stack/test_stack_real_training.py \
		tests/integration/test_docker_files.py::test_images_run_what_the_operator_runs_in_them

$(DEMOS:%=demo-%): demo-%: images
	$(BIN)/python -m airflow_resume_provider.testing.demo --folder demo-$* $(DEMO_$*) $(ARGS)

containers: container-tests $(DEMOS:%=demo-%)
