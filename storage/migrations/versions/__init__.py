"""One file per migration; each leads from its `down_revision` to its `revision`."""
