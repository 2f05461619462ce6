package store

// TrustedIdle is behind which a connection of a pool is asked whether it is there.
const TrustedIdle = trustedIdle

// The sizes of the pools that are no setting.
const (
	ReadPoolSize  = readPoolSize
	WatchPoolSize = watchPoolSize
)
