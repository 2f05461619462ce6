package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/faults"
)

// statusError is what the API server, or something in front of it, has answered.
type statusError struct {
	code    int
	reason  string // for programs, such as "Forbidden"
	message string // for people
}

func (e *statusError) Error() string {
	if e.reason != "" {
		return fmt.Sprintf("%d %s: %s", e.code, e.reason, e.message)
	}
	return fmt.Sprintf("%d: %s", e.code, e.message)
}

// read reads a Status of the API, if it is one.
func (e *statusError) read(text []byte) {
	var status struct {
		Kind    string `json:"kind"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &status) == nil && status.Kind == "Status" {
		e.reason, e.message = status.Reason, status.Message
		return
	}
	e.message = strings.TrimSpace(string(text[:min(len(text), 200)]))
}

// failure returns the error that a watch ended with.
func failure(object json.RawMessage) error {
	var status struct {
		Code int `json:"code"`
	}
	if err := json.Unmarshal(object, &status); err != nil {
		return fmt.Errorf("decode the end of a watch: %w", err)
	}
	e := &statusError{code: status.Code}
	e.read(object)
	return fmt.Errorf("watch leases: %w", e)
}

func isStatus(err error, code int) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == code
}

// failed returns the error of a request.
func (a *api) failed(ctx context.Context, r request, err error) error {
	if err == nil {
		return nil
	}
	var status *statusError
	answered := errors.As(err, &status)
	switch {
	case answered && a.remedy(r, status) != "":
		return &elector.DeniedError{Kind: faults.LeaseDenied, Answer: status.Error(), Err: fmt.Errorf("%s: %w", r.what(), err), Remedy: a.remedy(r, status)}
	case answered:
		return fmt.Errorf("%s: %s answered %w", r.what(), a.name, err)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %s has not answered: %w", r.what(), a.name, ctx.Err())
	}
	return fmt.Errorf("%s: %w", r.what(), err)
}

// remedy returns what an operator can do about an answer, or "" if that is not what it takes.
func (a *api) remedy(r request, s *statusError) string {
	switch {
	case s.code == http.StatusUnauthorized:
		return "The API server does not accept the credentials. " + a.config.now().login
	case s.code == http.StatusForbidden && strings.Contains(s.message, "exceeded quota"):
		return fmt.Sprintf("A ResourceQuota of the namespace %s limits leases. Fencepost needs one for each resource, and one more: raise it, or set election.kubernetes.namespace to another namespace.", a.namespace)
	case s.code == http.StatusForbidden && strings.Contains(s.message, "is being terminated"):
		return fmt.Sprintf("The namespace %s is being deleted: set election.kubernetes.namespace to another one.", a.namespace)
	case s.code == http.StatusForbidden:
		return fmt.Sprintf("Allow it: a Role in the namespace %s with the verbs get, list, watch, create and update on leases (apiGroups: coordination.k8s.io), "+
			"and a RoleBinding to the service account or the user of Fencepost. What was refused is %s. etc/kubernetes-leases.yml has all of them.", a.namespace, r.verb)
	case s.code == http.StatusNotFound && r.verb == "create":
		return fmt.Sprintf("Create the namespace %s, or set election.kubernetes.namespace to one that exists.", a.namespace)
	case s.code == http.StatusNotFound && r.name == "":
		return fmt.Sprintf("%s does not serve leases (coordination.k8s.io/v1): make sure that its address is that of a Kubernetes API server.", a.name)
	case s.code == http.StatusUnprocessableEntity, s.code == http.StatusBadRequest:
		return "The API server, or an admission webhook, does not accept the object: the answer says why."
	}
	return ""
}
