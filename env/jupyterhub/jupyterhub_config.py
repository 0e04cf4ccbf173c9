"""What `./lab hub up` starts JupyterHub with; the variable LAB_HUB names the hub's folder."""

from labkit_classroom.hub import configuration, settings

configuration.apply(get_config(), settings.own())  # noqa: F821 - traitlets gives it
