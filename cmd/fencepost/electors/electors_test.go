package electors

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/election"
)

// denying is a service that denies everything.
type denying struct{ client }

func (denying) BumpGeneration(context.Context) (string, error) {
	return "", &election.DeniedError{Err: errors.New("permission denied"), Remedy: "Grant it."}
}

func TestABumpThatIsDeniedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	n := network{client: denying{}, name: "etcd", title: "etcd"}
	_, err := n.BumpGeneration(t.Context(), "", nil)
	if err == nil || !strings.HasPrefix(err.Error(), "permission denied. Grant it.") {
		t.Errorf("it ended with %v", err)
	}
}
